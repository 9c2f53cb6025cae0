"""
Programs that only read, and the forms of them that do more (the default of mode `ask`).

A command is harmless only if every option is understood to be so. GNU long options may be abbreviated, and
short ones bundled, so both are compared by prefix and by letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["INERT", "installs", "is_harmless", "path_arguments", "reads_trees"]

INERT: Final = frozenset({"echo", "printf", "true", "false", ":", "test", "[", "exit", "return", "break", "continue"})
"""Programs whose arguments are only text."""

_PLAIN: Final = frozenset(
    "pwd ls dir cat head tail wc stat file which type whoami id uname basename dirname realpath readlink cut tr nl tac "
    "rev fold column comm join paste md5sum sha1sum sha256sum sha512sum cksum du df grep egrep fgrep diff cmp "
    "strings od hexdump cd sleep hostname nproc seq expr jq arch tty groups locale".split()
)
_BAD_OPTIONS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    # program: short letters, long options
    "sort": ("oTS", ("--output", "--compress-program", "--temporary-directory")),
    "rg": ("z", ("--pre", "--pre-glob", "--hostname-bin", "--search-zip")),
    "fd": ("xX", ("--exec", "--exec-batch")),
    "fdfind": ("xX", ("--exec", "--exec-batch")),
    "tree": ("oR", ("--output",)),
    "date": ("s", ("--set",)),
    "file": ("C", ("--compile",)),
    "hostname": ("FbB", ("--file", "--boot")),
    "diff": ("", ("--output",)),
    "ls": ("", ()),
}
_FIND_ACTIONS: Final = re.compile(r"-(exec|ok|delete|fprint|fls|files0)")
_SED_READS: Final = re.compile(
    r"(?:[\d$]+|/[^/\n;]*/)?(?:,(?:[\d$+~]+|/[^/\n;]*/))?!?[pdq=]"
    r"(?:;(?:[\d$]+)(?:,[\d$]+)?[pdq=])*"
)
_GIT_READS: Final = frozenset(
    "status log diff show rev-parse ls-files blame describe shortlog cat-file ls-tree name-rev rev-list merge-base "
    "grep diff-tree diff-index show-ref for-each-ref count-objects check-ignore version var".split()
)
_GIT_LISTS: Final[dict[str, frozenset[str]]] = {
    "branch": frozenset(
        "-a -r -v -vv -l --list --all --remotes --show-current --verbose --merged --no-merged --contains".split()
    ),
    "tag": frozenset("-l -n --list --contains --merged --no-merged".split()),
    "remote": frozenset("-v --verbose show get-url".split()),
    "stash": frozenset("list show".split()),
    "worktree": frozenset({"list"}),
    "reflog": frozenset({"show"}),
    "config": frozenset("--get --get-all --list -l --get-regexp".split()),
}
_GIT_BAD: Final = (
    "--output",
    "--ext-diff",
    "--textconv",
    "--open-files-in-pager",
    "--exec-path",
    "--no-index",
    "--filters",
)


def is_harmless(argv: Sequence[str]) -> bool:
    """
    Whether a command only reads what its arguments name.

    Args:
        argv: The argument vector, program first, without its directory.
    """
    program, arguments = argv[0], argv[1:]
    if program in INERT:
        return not (program == "printf" and arguments and arguments[0].startswith("-v"))
    check = _CHECKS.get(program)
    if check is not None:
        return check(arguments)
    return (program in _PLAIN or program in _BAD_OPTIONS) and not _has_bad_option(program, arguments)


def _has_bad_option(program: str, arguments: Sequence[str]) -> bool:
    letters, longs = _BAD_OPTIONS.get(program, ("", ()))
    return any(_is_bad(argument, letters, longs) for argument in arguments)


def _is_bad(argument: str, letters: str, longs: Sequence[str]) -> bool:
    if argument.startswith("--"):
        name = argument.partition("=")[0]
        return len(name) > 2 and any(long.startswith(name) for long in longs)
    return argument.startswith("-") and any(letter in letters for letter in argument[1:])


def _find(arguments: Sequence[str]) -> bool:
    return not any(_FIND_ACTIONS.match(argument) for argument in arguments)


def _sed(arguments: Sequence[str]) -> bool:
    scripts = [argument for argument in arguments if not argument.startswith("-")][:1]
    options = [argument for argument in arguments if argument.startswith("-")]
    return (
        all(option in ("-n", "-E", "-r", "-nE", "-nr", "--quiet", "--silent") for option in options)
        and len(scripts) == 1
        and _SED_READS.fullmatch(scripts[0]) is not None
    )


def _uniq(arguments: Sequence[str]) -> bool:
    # A second file name is where uniq writes.
    return sum(1 for argument in arguments if not argument.startswith("-")) <= 1


def _date(arguments: Sequence[str]) -> bool:
    return all(argument.startswith("+") or argument in ("-u", "-I", "-R", "--utc") for argument in arguments)


def _hostname(arguments: Sequence[str]) -> bool:
    return not arguments


def _command(arguments: Sequence[str]) -> bool:
    return arguments[:1] in (["-v"], ["-V"])


def _git(arguments: Sequence[str]) -> bool:
    rest = list(arguments)
    while rest and rest[0] in ("--no-pager", "-P", "--no-optional-locks", "-C"):
        del rest[: 2 if rest[0] == "-C" else 1]
    if not rest or rest[0] == "--version":
        return bool(rest)
    command, options = rest[0], rest[1:]
    if any(_is_bad(option, "O" if command == "grep" else "", _GIT_BAD) for option in options):
        return False
    if command in _GIT_LISTS:
        return _git_lists(command, options)
    return command in _GIT_READS


def _git_lists(command: str, options: Sequence[str]) -> bool:
    known = _GIT_LISTS[command]
    flags = [option for option in options if option.startswith("-")]
    if not options:
        return command in ("branch", "tag", "remote", "reflog")
    if any(flag not in known and flag.partition("=")[0] not in known for flag in flags):
        return False
    return bool(flags) or options[0] in known


_CHECKS: Final[dict[str, Callable[[Sequence[str]], bool]]] = {
    "find": _find,
    "gfind": _find,
    "sed": _sed,
    "uniq": _uniq,
    "date": _date,
    "hostname": _hostname,
    "git": _git,
    "command": _command,
}

_INSTALLS: Final = re.compile(
    r"(?:pip[\d.]*|python[\d.]* -m pip|uv pip|uv tool|pipx|conda|mamba|micromamba|apt|apt-get|dnf|yum|zypper|apk|brew"
    r"|port|snap|gem|cargo|go|npm|pnpm|yarn|bun|poetry|pdm|composer|cpan|luarocks|opam|choco|flatpak|helm plugin|code)"
    r"(?: -\S+)* (?:install|add|i|ci|get|sync|upgrade|update|dlx|exec|create|run-script-install)\b.*"
    r"|uv (?:add|sync|run --with)\b.*|(?:npx|uvx|pnpx|bunx) .*|pacman -S.*|easy_install .*",
    re.DOTALL,
)


def installs(argv: Sequence[str]) -> bool:
    """Whether a command fetches and installs packages, which may run their code."""
    return _INSTALLS.fullmatch(" ".join(argv)) is not None


def reads_trees(argv: Sequence[str]) -> bool:
    """Whether a search reads every file below the directories it names, hidden ones included."""
    program, options = argv[0], [argument for argument in argv[1:] if argument.startswith("-")]
    if program in ("grep", "egrep", "fgrep"):
        return any(
            option.startswith("--r") or (not option.startswith("--") and set("rR") & set(option)) for option in options
        )
    if program == "rg":
        return any(
            option.startswith("--hid") or (not option.startswith("--") and "." in option) for option in options
        ) or (sum(option.count("u") for option in options if not option.startswith("--")) >= 2)
    return False


def path_arguments(argv: Sequence[str]) -> list[str]:
    """
    The arguments of a command that may name files.

    Args:
        argv: The argument vector, program first.

    Returns:
        Every argument that could be a path, values of `--option=value`, `key=value` and `-xVALUE` included;
        the pattern of a search program is left out.
    """
    program, arguments = argv[0], list(argv[1:])
    if program in INERT:
        return []
    if program in ("grep", "egrep", "fgrep", "rg", "sed", "jq", "awk") or argv[:2] == ["git", "grep"]:
        arguments = _without_pattern(arguments)
    found: list[str] = []
    for argument in arguments:
        if argument.startswith("-") and "=" not in argument:
            found += [argument[2:]] if len(argument) > 2 and not argument.startswith("--") else []
            continue
        found.append(argument)
        if "=" in argument:
            found.append(argument.partition("=")[2])
    found += [path[1:] for path in found if path.startswith("@")]  # curl and others: "the content of this file"
    return [path for path in found if path]


def _without_pattern(arguments: list[str]) -> list[str]:
    if any(argument in ("-e", "-f") or argument.startswith(("--regexp", "--file")) for argument in arguments):
        return arguments
    for i, argument in enumerate(arguments):
        if not argument.startswith("-"):
            return arguments[:i] + arguments[i + 1 :]
    return arguments
