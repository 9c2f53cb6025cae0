"""
What models are told of the tools: descriptions, and the JSON Schema of their arguments.
"""

from __future__ import annotations

from typing import Any, Final

from dsh_tools_local._reading import MAX_LINES

__all__ = [
    "BASH",
    "BASH_KILL",
    "BASH_OUTPUT",
    "BASH_TEXT",
    "EDIT",
    "EDIT_TEXT",
    "GLOB",
    "GLOB_TEXT",
    "GREP",
    "GREP_TEXT",
    "READ",
    "READ_TEXT",
    "WRITE",
    "WRITE_TEXT",
]


def _object(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str, least: int = 1) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "description": description}


# -- shell ---------------------------------------------------------------------------------------------

BASH_TEXT: Final = """\
Run a command with bash and return its output (stdout and stderr in order) and exit code. Each call is a fresh \
shell in the session's working directory; `cd` and variables do not carry over. There is no terminal and stdin is \
empty: nothing can ask, page or open an editor, so give messages and answers on the command line. For what runs \
on (servers, watchers) set `background` and look at it with `bash_output`. Prefer `read`, `edit`, `glob` and \
`grep` over cat, sed, find and grep."""
BASH: Final = _object(
    ["command"],
    command={"type": "string", "description": "The command, as one would type it into bash."},
    description={"type": "string", "description": "What it does, in five to ten words, for the person who watches."},
    timeout={"type": "number", "exclusiveMinimum": 0, "description": "Seconds it may take."},
    workdir={"type": "string", "description": "Directory to run in; relative to the session's working directory."},
    background={"type": "boolean", "description": "Return at once and let it run on as a background task."},
)
_TASK_ID: Final = {"type": "string", "description": "The task, such as bg-1a2b3c."}
BASH_OUTPUT: Final = _object(
    ["task_id"],
    task_id=_TASK_ID,
    wait={"type": "number", "minimum": 0, "maximum": 60, "description": "Seconds to wait for something new."},
)
BASH_KILL: Final = _object(["task_id"], task_id=_TASK_ID)

# -- files ---------------------------------------------------------------------------------------------

_PATH: Final = _text("The file; relative to the session's working directory, absolute, or ~/….")
_OLD: Final = _text("The text to replace, exactly as it is in the file, without the line numbers of read.")
_NEW: Final = _text("What to put in its place.")
_ALL: Final = {"type": "boolean", "description": "Replace every occurrence; else the text must be there exactly once."}

READ_TEXT: Final = f"""\
Read a file: text with line numbers, at most {MAX_LINES} lines at once, or an image. A file has to be read before \
it can be changed."""
READ: Final = _object(["path"], path=_PATH, offset=_number("First line, from 1."), limit=_number("Number of lines."))
WRITE_TEXT: Final = """\
Create a file, with its directories, or replace its whole content. An existing file has to be read first. To \
change a part of a file use edit."""
WRITE: Final = _object(["path", "content"], path=_PATH, content=_text("The whole content."))
EDIT_TEXT: Final = """\
Replace text in a file that was read before. Everything else in the file stays as it is, line ends included. \
Give old and new, or several edits at once, which are all made or none."""
EDIT: Final = _object(
    ["path"],
    path=_PATH,
    old=_OLD,
    new=_NEW,
    replace_all=_ALL,
    edits={
        "type": "array",
        "description": "Several replacements in this file, one after the other; instead of old and new.",
        "items": _object(["old", "new"], old=_OLD, new=_NEW, replace_all=_ALL),
    },
)
GLOB_TEXT: Final = """\
Find files by name: `*.py` in any directory, `src/**/*.py`, `{a,b}.txt`. Files that .gitignore excludes are left \
out."""
GLOB: Final = _object(
    ["pattern"],
    pattern=_text("The pattern; relative to path."),
    path=_text("Directory to search; default: the working directory."),
)
GREP_TEXT: Final = """\
Search file contents with a regular expression, line by line; gives path:line:text. Files that .gitignore \
excludes, and binary files, are left out."""
GREP: Final = _object(
    ["pattern"],
    pattern=_text("The regular expression."),
    path=_text("File or directory to search; default: the working directory."),
    glob=_text("Only files that match, such as *.py."),
    ignore_case={"type": "boolean", "description": "Upper and lower case are the same."},
    context=_number("Lines to show before and after each match.", 0),
    limit=_number("Lines to return at most."),
)
