"""
The one repair of arguments (T-3): an object or array that a model wrote as JSON text is unwrapped, only
where the schema wants an object or array and would not take the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsh_core.tools.arguments import InvalidArguments, parse_arguments

__all__ = ["unwrap_json_text"]

_DEPTH: Final = 64
_ALL: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def unwrap_json_text(value: Any, schema: Any, root: Any = None, depth: int = 0) -> Any:
    """
    Unwrap JSON text where `schema` wants an object or array.

    Args:
        value: The arguments, or a part of them.
        schema: What belongs there.
        root: The whole schema, for `$ref`; the schema itself at the top.

    Returns:
        `value` itself if nothing was to be unwrapped, else a changed copy.
    """
    root = schema if root is None else root
    if depth > _DEPTH:
        return value
    if isinstance(value, str):
        inner = _unwrapped(value, _wanted(schema, root))
        return value if inner is value else unwrap_json_text(inner, schema, root, depth + 1)
    children = _children(value)
    changed = {}
    for key, child in children:
        for part in _schemas_of(key, schema, root, 0):
            mended = unwrap_json_text(child, part, root, depth + 1)
            if mended is not child:
                changed[key] = mended
                break
    if not changed:
        return value
    mended_all = [changed.get(key, child) for key, child in children]
    return dict(zip(value, mended_all, strict=True)) if isinstance(value, dict) else mended_all


def _unwrapped(text: str, wanted: frozenset[str]) -> Any:
    if "string" in wanted or not wanted & {"object", "array"}:
        return text
    try:
        inner = parse_arguments(text) if text.strip() else text
    except InvalidArguments:
        return text
    found = {dict: "object", list: "array"}
    return inner if any(isinstance(inner, kind) and name in wanted for kind, name in found.items()) else text


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _wanted(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema takes, as far as it says so."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return _ALL
    types = schema.get("type")
    allowed = _ALL if types is None else frozenset([types] if isinstance(types, str) else types)
    for values in ("enum", "const"):
        if any(isinstance(value, str) for value in _listed(schema, values)):
            return allowed | {"string"}
    for branch in ("anyOf", "oneOf"):
        if branch in schema:
            allowed &= frozenset().union(*(_wanted(part, root, depth + 1) for part in schema[branch]))
    for part in [*schema.get("allOf", ()), *_referenced(schema, root)]:
        allowed &= _wanted(part, root, depth + 1)
    return allowed


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword, [])
    return value if keyword == "enum" and isinstance(value, list) else [value]


def _referenced(schema: Mapping[str, Any], root: Any) -> Iterator[Any]:
    """What a local `$ref` points to."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return
    target = root
    for name in filter(None, reference[1:].split("/")):
        target = target.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
    yield target


def _schemas_of(key: Any, schema: Any, root: Any, depth: int) -> Iterator[Any]:
    """The schemas that speak of one member or item of a value."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return
    if isinstance(key, str):
        properties = schema.get("properties")
        own = properties.get(key) if isinstance(properties, Mapping) else None
        yield schema.get("additionalProperties") if own is None else own
    else:
        first = schema.get("prefixItems", ())
        yield first[key] if key < len(first) else schema.get("items")
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ()), *_referenced(schema, root)]
    for part in parts:
        yield from _schemas_of(key, part, root, depth + 1)
