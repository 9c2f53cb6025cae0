"""
The import rules of the architecture, checked on the source: run it, or let the tests run it.

Layers import only downwards; `session` and `content` know nothing of the rest; only `harness` knows the
loop; plugins use public modules only and never each other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "dsh_core"

# The loop: one package in all but name. Nobody else imports these, except the composition root.
LOOP = {"_attempt", "_batch", "_calls", "_exclusive", "_inbox", "_loop", "_receipts", "_turn", "_turnrun"}
COMPOSITION = {"harness", "_chat", "__init__", "testing"}
FOUNDATION = {"errors", "content"}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Each module that `path` imports at run time, with its line; imports for type checkers are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.level:
                yield "." * node.level + node.module, node.lineno
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def part(module: str) -> str | None:
    """The part of the core that a module belongs to, or None outside of it."""
    pieces = module.split(".")
    return pieces[1] if pieces[0] == "dsh_core" and len(pieces) > 1 else None


def core_faults(path: Path) -> Iterator[str]:
    """What in one module of the core breaks the rules."""
    here = path.relative_to(CORE).parts[0].removesuffix(".py")
    for module, line in imports(path):
        other = part(module)
        if other is None or other == here or not _exists(other):
            continue
        where = f"{path.relative_to(ROOT)}:{line}"
        if here in FOUNDATION and other not in FOUNDATION:
            yield f"{where}: {here} imports {other}; it may import nothing of the rest"
        elif here == "session" and other not in FOUNDATION:
            yield f"{where}: session imports {other}; it may import errors and content only"
        elif other in LOOP and here not in LOOP | COMPOSITION:
            yield f"{where}: {here} imports the loop ({other}); only harness may"
        elif other == "harness" and here not in COMPOSITION:
            yield f"{where}: {here} imports harness; it is the top of the tree"


def _exists(name: str) -> bool:
    return (CORE / f"{name}.py").exists() or (CORE / name).is_dir()


def plugin_faults(path: Path, own: str, foreign: set[str]) -> Iterator[str]:
    """What in one module of a plugin breaks the rules."""
    for module, line in imports(path):
        where = f"{path.relative_to(ROOT)}:{line}"
        if module.startswith("dsh_core") and any(piece.startswith("_") for piece in module.split(".")[1:]):
            yield f"{where}: {module} is private to the core"
        elif module.split(".")[0] in foreign - {own}:
            yield f"{where}: {own} imports {module}; plugins know the core and libraries only"


def faults() -> list[str]:
    """All faults of the tree."""
    found = [fault for path in sorted(CORE.rglob("*.py")) for fault in core_faults(path)]
    packages = {path.parent.name: path.parent for path in ROOT.glob("plugins/*/src/*/__init__.py")}
    for name, package in sorted(packages.items()):
        for path in sorted(package.rglob("*.py")):
            found += plugin_faults(path, name, set(packages))
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    broken = faults()
    print("\n".join(broken) or "import rules: all kept")
    sys.exit(1 if broken else 0)
