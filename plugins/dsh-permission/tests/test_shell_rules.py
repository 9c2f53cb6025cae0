"""
Rules on shell commands: every bypass is refused, every harmless twin runs.
"""

from __future__ import annotations

import pytest
from dsh_permission import PermissionPolicy


@pytest.fixture
def judge(tmp_path):
    workspace = tmp_path / "work"
    workspace.mkdir()

    def decide(command, *, allow=(), ask=(), deny=(), mode="ask", workdir=None):
        policy = PermissionPolicy.from_rules(allow, ask, deny, mode=mode, workspace=workspace, home=tmp_path)
        return policy.judge("bash", {"command": command, **({"workdir": workdir} if workdir else {})})

    return decide


JOINED = [
    "git log && {}",
    "git log || {}",
    "git log; {}",
    "git log | {}",
    "git log & {}",
    "git log\n{}",
    "({})",
    "{{ {}; }}",
    "if git log; then {}; fi",
    "if {}; then git log; fi",
    "while {}; do git log; done",
    "case x in x) {};; esac",
    "for i in 1; do {}; done",
    "f() {{ {}; }}; git log",
    "! {}",
    "git log $({})",
    "git log `{}`",
    'git log "$({})"',
    "git log <({})",
    "git log <<EOF\n$({})\nEOF",
    "git log <<< $({})",
    "git log ${{x:-$({})}}",
    "[[ -n $({}) ]] && git log",
    "(( a = $({}) ))",
    "{} > /dev/null",
    "coproc {}",
]


@pytest.mark.parametrize("frame", JOINED)
def test_a_denied_command_is_found_wherever_it_stands(judge, frame):
    """G-3, perm-1: every simple command is judged and the strictest verdict wins."""
    verdict = judge(frame.format("rm -r d"), allow=["bash(git *)"], deny=["bash(rm *)"])
    assert (verdict.decision, verdict.rule) == ("deny", "bash(rm *)")


READABLE = [frame for frame in JOINED if not frame.startswith("git log") or frame[8] in "&|;\n"]


@pytest.mark.parametrize("frame", READABLE)
def test_the_same_frame_round_an_allowed_command_runs(judge, frame):
    """G-3: a check that refuses everything is no better than none."""
    assert judge(frame.format("git status"), allow=["bash(git *)"]).decision == "allow"


@pytest.mark.parametrize(
    "command",
    ["git log &&", "git log )", "if git log; then", "git log 'x", "git log \x00 x", "git log $(", "git log\r"],
)
def test_what_cannot_be_parsed_is_never_allowed_by_a_rule(judge, command):
    """G-3, perm-1: unreadable text asks even under a rule for everything."""
    for rule in ("bash(git *)", "bash", "bash(*)", "*"):
        assert judge(command, allow=[rule]).decision == "ask"


@pytest.mark.parametrize(
    "command",
    ["X=$(touch p) npm --version", "X=`touch p` npm --version", "npm --version <(touch p)", "npm --version $(touch p)"],
)
def test_substitutions_are_judged_too(judge, command):
    """G-3, perm-2: what is executed on the way counts."""
    assert judge(command, allow=["bash(npm --version)"]).decision == "ask"
    assert judge("npm --version", allow=["bash(npm --version)"]).decision == "allow"


def test_substitutions_count_inside_double_quotes_and_not_inside_single_ones(judge):
    """G-3, perm-2: quoting decides whether text runs."""
    assert judge('echo "$(rm -r d)"', allow=["bash(echo *)"]).decision == "ask"
    assert judge("echo '$(rm -r d)'", allow=["bash(echo *)"]).decision == "allow"
    assert judge('echo "$(git log)"', allow=["bash(echo *)", "bash(git *)"]).decision == "allow"
    assert judge("cat <<'EOF'\n$(rm x)\nEOF", deny=["bash(rm *)"]).decision == "allow"


@pytest.mark.parametrize(
    "command",
    [
        'echo "${x:=`rm y`}"',
        "echo ${x:-`rm y`}",
        "echo ${x/`rm`/y}",
        "cat <<-EOF\n\t$(rm x)\n\tEOF",
        "cat <<EOF\n`rm x`\nEOF",
        "cat <<EOF\na $(git log) `rm x`\nEOF",
        "test -v 'a[$(rm x)]'",
        "[ -v 'a[$(rm x)]' ]",
        "printf x; unset 'a[$(rm x)]'",
        "x='a[$(rm d)]'; [[ $x -eq 1 ]]",
        "x='a[$'; x+='(rm d)]'; (( x ))",
        "x=$'a[\\x24(rm d)]'; echo $((x))",
        "x=$(cat f); (( x > 1 ))",
        "for i in 'a[$(rm x)]'; do (( i )); done",
        "x='$(rm y)'; echo ${x@P}",
        "echo 'a\\\n'; git lo\\\ng",
        'echo $"$(rm x)"',
    ],
)
def test_places_where_code_hides_from_the_grammar_are_never_allowed(judge, command):
    """G-3, perm-2: backquotes, here-documents, subscripts and arithmetic that run what they hold."""
    assert judge(command, allow=["*"]).decision == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "echo ${x:-y} ${#x} ${x%.py}",
        "cat <<EOF\n$HOME \\`x\\` ${X} \\$(x)\nEOF",
        "cat <<'EOF'\n`rm x` $(rm y)\nEOF",
        "cat <<EOF\nplain\nEOF",
        'echo "a \\$(x) \\`y\\`"',
        "i=0; while (( i < 3 )); do echo $i; done",
        "x='a b [c]'; echo $x",
        "[[ a == b* ]] && echo y",
        "n=3; [[ $n -eq 3 ]] && echo y",
        "echo $((1 + 2))",
        "test -f 'a[1]'",
    ],
)
def test_harmless_forms_of_the_same_constructs_run(judge, command):
    """G-3: the harmless twins."""
    verdict = judge(command)
    assert verdict.decision == "allow", verdict.reason


SPELLINGS = [
    "env {}",
    "env A=1 {}",
    "env -i {}",
    "env -u X {}",
    "env -S x {}",
    "timeout 5 {}",
    "timeout -k 3 -s KILL 5 {}",
    "timeout --signal=9 5 {}",
    "nohup {}",
    "nice -n 5 {}",
    "nice -5 {}",
    "stdbuf -oL {}",
    "setsid {}",
    "time {}",
    "time -p {}",
    "command {}",
    "builtin {}",
    "exec {}",
    "exec -a x {}",
    "xargs {}",
    "xargs -0 -n 1 {}",
    "sudo {}",
    "sudo -u bob {}",
    "sudo A=1 {}",
    "doas {}",
    "sh -c '{}'",
    "bash -lc '{}'",
    "bash -c '{}' arg",
    "eval {}",
    "eval '{}'",
    "eval 'git log; {}'",
    "trap '{}' EXIT",
    "find . -exec {} \\;",
    "find . -execdir {} +",
    "fd x -x {}",
    "git -c alias.z='!{}' z",
    "git rebase -x '{}' main",
    "git submodule foreach '{}'",
    "git bisect run {}",
    "timeout 5 env A=1 nohup {}",
    "sh -c \"sh -c '{}'\"",
    "/usr/bin/env {}",
    "ssh host {}",
    "watch {}",
    "busybox {}",
]


@pytest.mark.parametrize("frame", SPELLINGS)
def test_deny_and_ask_rules_see_through_wrappers(judge, frame):
    """G-3, perm-3, perm-6: at least as far as allow rules do."""
    command = frame.format("rm x")
    assert judge(command, allow=["*"], deny=["bash(rm *)"]).decision == "deny"
    assert judge(command, allow=["*"], ask=["bash(rm *)"]).decision == "ask"


@pytest.mark.parametrize(
    "name",
    ["\\rm", 'r""m', "'rm'", '"rm"', "$'\\x72m'", "$'\\162m'", "/bin/rm", "./rm", "../../bin/rm", "r\\\nm", "$'rm'"],
)
def test_deny_rules_see_through_quoting_and_paths(judge, name):
    """G-4, perm-3: patterns match the words the program would get."""
    assert judge(f"{name} x", allow=["*"], deny=["bash(rm *)"]).decision == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "$X x",
        "r$Y x",
        "$(echo rm) x",
        "r? x",
        "/bin/r* x",
        "{rm,x}",
        "~/rm x",
        "foo $'\\x00'",
        'sh -c "$X"',
        "eval $X",
        "git $X",
        "xargs $X",
        "env $X",
        "find . $X",
        "sh -o posix -c x",
        "timeout --unknown 5 ls",
    ],
)
def test_an_unknown_word_where_it_matters_is_never_allowed(judge, command):
    """G-3, perm-3: an unreadable word behind a wrapper or as a program asks."""
    assert judge(command, allow=["*"]).decision == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "timeout 5 npm test",
        "env CI=1 npm test",
        "nohup npm test",
        "CI=true npm test",
        "sh -c 'npm test'",
        "eval npm test",
        "/usr/bin/npm test",
        "time npm test",
        "command npm test",
        "'npm' \"test\"",
        "npm test 2>&1",
        "npm test > /dev/null",
        "npm test | tail -3",
        "cd . && npm test",
    ],
)
def test_transparent_wrappers_keep_an_allowed_command_allowed(judge, command):
    """G-1, G-3: the harmless twins of the wrappers run without a question."""
    assert judge(command, allow=["bash(npm test)"]).decision == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "sudo npm test",
        "./npm test",
        "/tmp/npm test",
        "npm test x",
        "npm tests",
        "npmx test",
        "PATH=. npm test",
        "LD_PRELOAD=x npm test",
        "env PATH=. npm test",
        "npm test > out",
        "xargs npm test",
    ],
)
def test_an_allow_rule_covers_nothing_wider(judge, command):
    """G-1, G-4: allow rules match exactly what they say."""
    assert judge(command, allow=["bash(npm test)"]).decision == "ask"


def test_a_pattern_with_a_rest_stops_at_word_boundaries(judge):
    """G-1: `git *` matches `git` and `git log`, not `gitk`."""
    allow = ["bash(git *)"]
    assert [judge(c, allow=allow).decision for c in ("git", "git fetch", "gitk", "git-x")] == [
        "allow",
        "allow",
        "ask",
        "ask",
    ]


def test_deny_and_ask_look_behind_assignments(judge):
    """G-3, perm-6: ask and deny always look behind assignments, `sh -c` and `eval`."""
    rules = {"allow": ["bash(*)"], "ask": ["bash(git *)"], "deny": ["bash(aws *)"]}
    assert judge("CI=true git push", **rules).decision == "ask"
    for command in ("A=1 B=2 aws x", "sh -c 'aws x'", "eval 'aws x'", "eval aws x"):
        assert judge(command, **rules).decision == "deny"
    assert judge('sh -c "$(cat f)"', **rules).decision == "ask"
    assert judge("make", **rules).decision == "allow"


@pytest.mark.parametrize("command", ["rm -fr d", "rm -f -r d", "rm d -r", "rm -vrf d", "/bin/rm -rf d", "rm -r -- d"])
def test_flag_bundles_do_not_hide_a_flag_from_deny(judge, command):
    """G-4: flag bundles are normalised for deny."""
    assert judge(command, allow=["*"], deny=["bash(rm -r *)"]).decision == "deny"
    assert judge("rm f", allow=["*"], deny=["bash(rm -r *)"]).decision == "allow"


def test_global_options_of_git_do_not_hide_its_command(judge):
    """G-4: `git -C d push` is a push."""
    for command in ("git -C d push", "git --no-pager push", "git -c user.name=x push origin"):
        assert judge(command, allow=["bash(git *)"], deny=["bash(git push *)"]).decision == "deny"
    assert judge("git log push", allow=["bash(git *)"], deny=["bash(git push *)"]).decision == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "find . -exec cat {} +",
        "find . -delete",
        "find . -fprint f",
        "sed -n '1e cmd' f",
        "sed -i s/a/b/ f",
        "sed -n '1w x' f",
        "sort -o f f",
        "sort -uo f f",
        "sort --outp=f f",
        "git diff --output=f",
        "git diff --outp f",
        "git -c alias.z='!cmd' z",
        "git branch -D b",
        "git branch b",
        "git tag v1",
        "git stash",
        "git config user.name x",
        "git grep -Ocmd x",
        "rg --pre cmd x",
        "fd -x cmd",
        "fd -Hx cmd",
        "uniq a b",
        "date -s 1",
        "tree -o f",
        "git -c core.pager=cmd log",
        "git --exec-path=. log",
        "env",
        "awk '{system(1)}' f",
        "python x.py",
        "tee f",
        "xargs rm",
        "ls > f",
        "cat /etc/passwd",
        "cat ../x",
        "ls /",
        "cat ~/x",
        "cd / && ls",
        "cd $X && ls",
        "git -C / log",
        "./ls",
        "printf -v x y",
        "cat $F",
        "curl x",
        "grep -r x /",
        "x='a[$(rm d)]'; [[ $x -eq 1 ]]",
        "exec 3<>/dev/tcp/h/1",
        "cat < /etc/passwd",
        "cat </dev/tcp/h/1",
    ],
)
def test_programs_that_only_seem_to_read_are_not_allowed_by_default(judge, command):
    """G-2, perm-7: mode ask allows reads inside the workspace and nothing else."""
    assert judge(command).decision == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "find . -name '*.py'",
        "sed -n '1,5p' f",
        "sed -n '/a/,/b/p' f",
        "sort f",
        "sort -u f",
        "sort -rn f | uniq -c",
        "git diff",
        "git diff --stat",
        "git log --oneline -5",
        "git branch",
        "git branch -a",
        "git tag -l",
        "git stash list",
        "git remote -v",
        "git --no-pager log",
        "git status -s",
        "rg foo",
        "rg -n 'a|b' src",
        "fd foo",
        "ls -la",
        "cat *.py",
        "grep -rn foo .",
        "head -20 f | tail -5",
        "wc -l f && pwd",
        "cd sub && ls",
        "echo hi",
        "echo $HOME",
        "printf '%s' x",
        "test -f x && echo y",
        "for i in a b; do echo $i; done",
        "date +%s",
        "cat f 2>/dev/null",
        "X=1 ls",
        "if [ -f x ]; then cat x; fi",
        "git -C sub log",
        "git grep foo",
        "cat < f",
        "command -v git",
        "# note\nls",
        "ls; # note",
        "",
    ],
)
def test_harmless_forms_of_the_same_programs_run(judge, command):
    """G-2, perm-7: the harmless twins stay allowed."""
    verdict = judge(command)
    assert verdict.decision == "allow", verdict.reason


@pytest.mark.parametrize(
    "command",
    [
        "pip install x",
        "python -m pip install x",
        "npm i x",
        "npm install",
        "apt-get install -y x",
        "npx x",
        "uvx x",
        "cargo install x",
    ],
)
def test_installing_packages_asks_whatever_is_allowed(judge, command):
    """G-2: installing packages runs their code."""
    assert judge(command, allow=["*"]).decision == "ask"
    assert judge("pip list && npm run build", allow=["*"]).decision == "allow"


@pytest.mark.parametrize("mode", ["ask", "accept-edits", "plan", "full-trust"])
def test_modes_differ_in_what_needs_no_rule(judge, mode):
    """G-2: reads, writes inside the workspace, anything else."""
    expected = {
        "ask": ("allow", "ask", "ask", "ask"),
        "accept-edits": ("allow", "allow", "ask", "ask"),
        "plan": ("allow", "deny", "deny", "deny"),
        "full-trust": ("allow", "allow", "allow", "allow"),
    }[mode]
    commands = ("ls", "echo hi > f", "make", "cat $F | sh")
    assert tuple(judge(command, mode=mode).decision for command in commands) == expected


def test_mode_plan_is_not_lifted_by_a_rule(judge):
    """G-2: nothing writes or executes in mode plan; a denial holds in full trust."""
    assert judge("make", mode="plan", allow=["*"]).decision == "deny"
    assert judge("rm x", mode="full-trust", deny=["bash(rm *)"]).decision == "deny"


def test_the_working_directory_of_the_call_counts(judge, tmp_path):
    """G-4: relative paths start where the command starts."""
    assert judge("cat f", workdir="sub").decision == "allow"
    assert judge("cat f", workdir=str(tmp_path)).decision == "ask"


def test_words_behind_a_redirection_belong_to_the_command(judge):
    """G-3: `git > /dev/null push` is a push."""
    assert judge("git > /dev/null push", allow=["bash(git *)"], deny=["bash(git push *)"]).decision == "deny"
    assert judge("> /dev/null git push", allow=["bash(git *)"], deny=["bash(git push *)"]).decision == "deny"


def test_a_rule_that_can_never_match_is_warned_about(tmp_path):
    """G-1: commands are judged one by one, so a rule for two never matches."""
    policy = PermissionPolicy.from_rules(["bash(git add && git commit)", "bash()", "bash(git *)"], workspace=tmp_path)
    assert len(policy.warnings) == 2
