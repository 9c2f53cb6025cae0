"""
Commands that run other commands: what is inside them (G-3).

A *transparent* wrapper (`timeout 5 npm test`) adds nothing of its own: a rule that allows the inner command
allows the whole. Every other wrapper needs a rule of its own as well. An option this module does not know
makes the wrapper unreadable, which never allows anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import attrs

from dsh_permission.words import Word

__all__ = ["Inner", "inner_of"]


@attrs.frozen
class Inner:
    """
    What a command runs besides itself.

    Args:
        commands: Argument vectors.
        scripts: Shell text that is evaluated.
        environment: Names the wrapper sets for the inner command.
        transparent: The wrapper adds nothing to what it runs.
        problem: Why the inside cannot be read, or None.
    """

    commands: tuple[tuple[Word, ...], ...] = ()
    scripts: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    transparent: bool = False
    problem: str | None = None


@attrs.frozen
class _Prefix:
    """A program whose arguments are options, some operands, and then a command."""

    flags: str = ""
    values: str = ""
    long_flags: frozenset[str] = frozenset()
    long_values: frozenset[str] = frozenset()
    operands: int = 0
    transparent: bool = True
    adds_input: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PREFIXES: Final = {
    "timeout": _Prefix("vfp", "ks", _names("preserve-status foreground verbose"), _names("kill-after signal"), 1),
    "gtimeout": _Prefix("vfp", "ks", _names("preserve-status foreground verbose"), _names("kill-after signal"), 1),
    "nohup": _Prefix(),
    "nice": _Prefix("", "n", long_values=_names("adjustment")),
    "ionice": _Prefix("t", "cn", _names("ignore"), _names("class classdata")),
    "stdbuf": _Prefix("", "ioe", long_values=_names("input output error")),
    "setsid": _Prefix("cfw", "", _names("ctty fork wait")),
    "time": _Prefix("pv", "f", _names("portability verbose"), _names("format")),
    "command": _Prefix("p"),
    "builtin": _Prefix(),
    "exec": _Prefix("cl", "a"),
    "caffeinate": _Prefix("dimsu", "tw"),
    "busybox": _Prefix(),
    "sudo": _Prefix("AbEeHiKklnPSsV", "ugpCThUDRrt", _names("non-interactive preserve-env login stdin"),
                    _names("user group prompt chdir host role type"), transparent=False),
    "doas": _Prefix("Lns", "uC", transparent=False),
    "chroot": _Prefix("", "", _names("skip-chdir"), _names("groups userspec"), 1, transparent=False),
    "strace": _Prefix("cCdfFhiqrtTvxy", "abeEoOpsSuP", transparent=False),
    "xargs": _Prefix("0oprtx", "aEIdLnPs", _names("null no-run-if-empty interactive verbose open-tty exit"),
                     _names("arg-file delimiter eof replace max-lines max-args max-procs max-chars"),
                     transparent=False, adds_input=True),
}  # fmt: skip
_SHELLS: Final = _names("sh bash dash zsh ksh ash rbash")
_OPAQUE: Final = _names(
    "ssh su parallel watch script screen tmux nsenter unshare flock at batch runuser pkexec systemd-run entr "
    "setpriv runcon sg start-stop-daemon unbuffer expect chpst envdir proot fakeroot gosu tini dumb-init rlwrap "
    "ltrace gdb"
)
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=", re.ASCII)
UNKNOWN: Final = Word("…", None)


def inner_of(words: Sequence[Word]) -> Inner | None:
    """
    What the command `words` runs besides itself, or None for an ordinary command.

    Args:
        words: The argument vector; the first word is the program, its directory removed.
    """
    program = words[0].text
    if program is None:
        return Inner(problem="the program is not known before the command runs")
    if program in _PREFIXES:
        return _prefix(program, words, _PREFIXES[program])
    if program in _SHELLS:
        return _shell(words)
    special = _SPECIAL.get(program)
    if special is not None:
        return special(words)
    if program in _OPAQUE:
        # Deny rules still look at every possible command in the arguments.
        rest = tuple(tuple(words[i:]) for i in range(1, len(words)))
        return Inner(commands=rest, problem=f"what {program} would run cannot be read")
    return None


def _prefix(program: str, words: Sequence[Word], prefix: _Prefix) -> Inner | None:
    if program == "command" and len(words) > 1 and words[1].text in ("-v", "-V"):
        return None
    start = _skip_options(words, prefix)
    if start is None:
        rest = tuple(tuple(words[i:]) for i in range(1, len(words)))
        return Inner(commands=rest, problem=f"the options of {program} cannot be read")
    start += prefix.operands
    environment: list[str] = []
    while program in ("sudo", "doas") and start < len(words) and _assigns(words[start]):
        environment.append(_assigns(words[start]) or "")
        start += 1
    inner = tuple(words[start:])
    if not inner:
        return None if not prefix.adds_input else Inner(transparent=False)
    if prefix.adds_input:
        inner = (*inner, UNKNOWN)
    return Inner((inner,), environment=tuple(environment), transparent=prefix.transparent)


def _skip_options(words: Sequence[Word], prefix: _Prefix, start: int = 1) -> int | None:
    i = start
    while i < len(words):
        text = words[i].text
        if text is None:
            return None
        if text == "--":
            return i + 1
        if not text.startswith("-") or text == "-":
            return i
        width = _option_width(text, prefix)
        if width is None:
            return None
        i += width
    return i


def _option_width(text: str, prefix: _Prefix) -> int | None:
    """How many words an option takes: itself, or itself and its value."""
    if text.startswith("--"):
        name, equals, _ = text[2:].partition("=")
        if name in prefix.long_values:
            return 1 if equals else 2
        return 1 if name in prefix.long_flags else None
    if re.fullmatch(r"-\d+", text) and "n" in prefix.values:
        return 1
    for position, letter in enumerate(text[1:], start=2):
        if letter in prefix.values:
            return 1 if position < len(text) else 2
        if letter not in prefix.flags:
            return None
    return 1


def _assigns(word: Word) -> str | None:
    hit = _ASSIGNMENT.match(word.text if word.text is not None else word.raw)
    return hit[1] if hit else None


def _env(words: Sequence[Word]) -> Inner | None:
    prefix = _Prefix("i0v", "uC", _names("ignore-environment null debug"), _names("unset chdir"))
    start = _skip_options(words, prefix)
    if start is None:
        rest = tuple(tuple(words[i:]) for i in range(1, len(words)))
        return Inner(commands=rest, problem="the options of env cannot be read")
    names: list[str] = []
    while start < len(words) and (name := _assigns(words[start])):
        names.append(name)
        start += 1
    changes_directory = any((word.text or "").startswith(("-C", "--chdir")) for word in words[1:start])
    problem = "env changes the directory" if changes_directory else None
    inner = tuple(words[start:])
    return Inner((inner,), environment=tuple(names), transparent=True, problem=problem) if inner else None


def _coproc(words: Sequence[Word]) -> Inner | None:
    inner = tuple(words[1:])
    return Inner((inner,), transparent=True) if inner else None


def _shell(words: Sequence[Word]) -> Inner | None:
    """`sh -c TEXT`; a shell that reads a file or its input is an ordinary command."""
    for i, word in enumerate(words[1:], start=1):
        if word.text is None:
            return Inner(problem="the arguments of a shell cannot be read")
        if not word.text.startswith(("-", "+")) or word.text in ("-", "--"):
            return None
        if word.text.startswith("--") or "o" in word.text or "O" in word.text:
            return Inner(
                problem="the options of a shell cannot be read",
                commands=(tuple(words[i + 1 :]),) * (i + 1 < len(words)),
            )
        if "c" in word.text:
            return _evaluated(words[i + 1 : i + 2], plain=len(words) == i + 2 and not word.globs)
    return None


def _evaluated(words: Sequence[Word], *, plain: bool = True) -> Inner:
    if not words or any(word.text is None or word.globs for word in words):
        return Inner(problem="the text that would be evaluated cannot be read")
    # With further arguments the text reads them as $0, $1, …: they stay unknown in it.
    return Inner(scripts=(" ".join(word.text or "" for word in words),), transparent=plain)


def _eval(words: Sequence[Word]) -> Inner | None:
    return _evaluated(words[1:]) if len(words) > 1 else None


def _trap(words: Sequence[Word]) -> Inner | None:
    if len(words) < 3 or words[1].text in ("-", ""):
        return None
    return _evaluated(words[1:2])


def _find(words: Sequence[Word]) -> Inner | None:
    return _executes(words, _names("-exec -execdir -ok -okdir"))


def _fd(words: Sequence[Word]) -> Inner | None:
    return _executes(words, _names("-x -X --exec --exec-batch"))


def _executes(words: Sequence[Word], options: frozenset[str]) -> Inner | None:
    if any(word.text is None for word in words):
        return Inner(problem="an argument of a program that can run others is not known")
    commands: list[tuple[Word, ...]] = []
    i = 1
    while i < len(words):
        if words[i].text in options:
            end = next((j for j in range(i + 1, len(words)) if words[j].text in (";", "+")), len(words))
            commands.append(tuple(UNKNOWN if "{" in word.raw else word for word in words[i + 1 : end]) or (UNKNOWN,))
            i = end
        i += 1
    return Inner(tuple(commands)) if commands else None


def _git(words: Sequence[Word]) -> Inner | None:
    if any(word.text is None for word in words):
        return Inner(problem="an argument of git is not known, and some of them run programs")
    texts = [word.text or "" for word in words]
    scripts, problem = _git_settings(texts)
    if problem is None and any(_GIT_RUNS.match(text) for text in texts[1:]):
        problem = "an option of git makes it run another program"
    for i, text in enumerate(texts):
        if text in ("-x", "--exec") and "rebase" in texts[:i] and i + 1 < len(texts):
            scripts.append(texts[i + 1])
        elif text.startswith("--exec=") and "rebase" in texts[:i]:
            scripts.append(text.partition("=")[2])
        elif text == "foreach" and "submodule" in texts[:i]:
            scripts.append(" ".join(texts[i + 1 :]))
        elif text == "run" and texts[i - 1] == "bisect":
            return Inner((tuple(words[i + 1 :]) or (UNKNOWN,),), tuple(scripts), problem=problem)
    return Inner(scripts=tuple(scripts), problem=problem) if scripts or problem else None


_HARMLESS_GIT: Final = re.compile(
    r"(color\.[\w.]+|user\.(name|email)|core\.(quotepath|autocrlf|filemode)|advice\.\w+|init\.defaultbranch"
    r"|commit\.gpgsign|log\.\w+|diff\.(renames|context|algorithm)|safe\.directory|protocol\.version)=.*",
    re.IGNORECASE | re.DOTALL,
)
_ALIAS: Final = re.compile(r"alias\.[^=]+=!(.*)", re.IGNORECASE | re.DOTALL)


_GIT_RUNS: Final = re.compile(r"--(upload|receive)-pac|--open-files|--extcmd|ext::")
_GIT_VALUES: Final = frozenset({"-c", "-C", "--git-dir", "--work-tree", "--namespace", "--super-prefix"})


def _git_settings(texts: Sequence[str]) -> tuple[list[str], str | None]:
    """Commands hidden in `git -c alias.x=!cmd`, and whether other settings could run something."""
    scripts: list[str] = []
    problem = None
    for i, text in enumerate(texts[1:], start=1):
        if not text.startswith("-") and texts[i - 1] not in _GIT_VALUES:
            break
        if text.startswith(("--config-env", "--exec-path=")):
            problem = f"git {text.partition('=')[0]} can make git run programs"
        setting = texts[i] if texts[i - 1] == "-c" else text[2:] if text.startswith("-c") and len(text) > 2 else None
        if setting is None:
            continue
        alias = _ALIAS.fullmatch(setting)
        if alias:
            scripts.append(alias[1])
        elif not _HARMLESS_GIT.fullmatch(setting):
            problem = f"the git setting {setting.partition('=')[0]!r} can make git run programs"
    return scripts, problem


_SPECIAL: Final = {
    "env": _env,
    "coproc": _coproc,
    "eval": _eval,
    "trap": _trap,
    "find": _find,
    "gfind": _find,
    "fd": _fd,
    "fdfind": _fd,
    "git": _git,
}
