"""
Strict structuring: plain mappings into attrs classes, all faults at once.

cattrs dispatches on the types; its silent coercions are off. An int for text, a bool for an int, a map or
text for a list are faults. cattrs is imported on first use only, because it costs more than all the rest.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs

from dsh_core._faults import (
    WORDS,
    Fault,
    Faults,
    describe,
    dotted,
    is_attrs,
    is_list,
    is_literal,
    is_mapping,
    is_table,
    is_union,
    kind_of,
    nearest,
)

if TYPE_CHECKING:
    from cattrs import Converter

__all__ = ["structure_mapping"]

T = TypeVar("T")
Hook: TypeAlias = Callable[[Any, Any], Any]


def structure_mapping(mapping: Mapping[str, Any], cls: type[T]) -> T:
    """
    Build `cls`, an attrs class, from a mapping.

    Raises:
        Faults: With every fault found, not only the first.
    """
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(typing.cast("Any", cls))
    if not mapping and not any(_required(field) for field in fields):
        return typing.cast("T", _build(cls, {}))
    return _converter().structure(mapping, cls)


def _required(field: attrs.Attribute[Any]) -> bool:
    return field.init and field.default is attrs.NOTHING


@cache
def _converter() -> Converter:
    from cattrs import Converter

    converter = Converter()
    for plain in WORDS:
        converter.register_structure_hook(plain, _exact)
    converter.register_structure_hook(enum.Enum, _choice)
    converter.register_structure_hook_factory(is_literal, lambda t: _literal)
    converter.register_structure_hook_factory(is_list, _list_hook)
    converter.register_structure_hook_factory(is_mapping, _mapping_hook)
    converter.register_structure_hook_factory(is_attrs, _attrs_hook)
    converter.register_structure_hook_factory(is_union, _union_hook)
    return converter


def _wrong(value: Any, expected: Any) -> Faults:
    return Faults([Fault("", f"expected {describe(expected)}, found {kind_of(value)}")])


def _exact(value: Any, expected: Any) -> Any:
    if issubclass(expected, enum.Enum):  # text enumerations arrive here, because they are text
        return _choice(value, expected)
    if type(value) is expected or (expected is Path and isinstance(value, Path)):
        return value
    if expected is float and type(value) is int:
        return float(value)
    if expected is Path and type(value) is str:
        return Path(value).expanduser()
    raise _wrong(value, expected)


def _choice(value: Any, expected: Any) -> Any:
    return expected(_one_of(value, [member.value for member in expected])) if type(value) is not expected else value


def _literal(value: Any, expected: Any) -> Any:
    return _one_of(value, list(typing.get_args(expected)))


def _one_of(value: Any, choices: list[Any]) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    hint = f"; {nearest(value, map(str, choices))}" if isinstance(value, str) and choices else ""
    hint = hint if "did you mean" in hint else ""
    raise Faults([Fault("", f"expected one of {', '.join(map(repr, choices))}, found {kind_of(value)}{hint}")])


def _gather(work: Iterable[tuple[str, Any, Any]]) -> list[Any]:
    """Structure each `(key, value, type)`; raise all their faults together."""
    done: list[Any] = []
    faults: list[Fault] = []
    for key, value, expected in work:
        try:
            done.append(_converter().structure(value, expected))
        except Faults as wrong:
            faults += [fault.below(key) for fault in wrong.faults]
        except Exception:  # noqa: BLE001 - hooks of a plugin's own types raise what they like; the value may be a secret
            faults += [fault.below(key) for fault in _wrong(value, expected).faults]
    if faults:
        raise Faults(faults)
    return done


def _list_hook(expected: Any) -> Hook:
    origin, arguments = typing.get_origin(expected) or expected, typing.get_args(expected)
    fixed = origin is tuple and arguments and arguments[-1] is not ...
    make: Any = tuple
    if origin in (list, set, frozenset):
        make = origin
    elif issubclass(origin, AbstractSet):
        make = frozenset

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, list | tuple | AbstractSet) or (fixed and len(value) != len(arguments)):
            raise _wrong(value, expected)
        kinds = arguments if fixed else [arguments[0] if arguments else Any] * len(value)
        return make(_gather((f"[{i}]", each, kind) for i, (each, kind) in enumerate(zip(value, kinds, strict=True))))

    return structure


def _mapping_hook(expected: Any) -> Hook:
    inner = (typing.get_args(expected) or (str, Any))[1]

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong(value, expected)
        parts = _gather((dotted("", str(key)), each, inner) for key, each in value.items())
        return dict(zip(value, parts, strict=True))

    return structure


def _attrs_hook(cls: Any) -> Hook:
    attrs.resolve_types(cls)
    fields = {field.alias or field.name: field for field in attrs.fields(cls) if field.init}

    def structure(value: Any, _: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise _wrong(value, cls)
        faults = _key_faults(value, fields)
        arguments: dict[str, Any] = {}
        for key in [key for key in value if key in fields]:
            try:
                arguments[key] = _gather([(key, value[key], fields[key].type or Any)])[0]
            except Faults as wrong:
                faults += wrong.faults
        if faults:
            raise Faults(faults + _validator_faults(fields, arguments, None))
        return _build(cls, arguments)

    return structure


def _key_faults(value: Mapping[str, Any], fields: Mapping[str, attrs.Attribute[Any]]) -> list[Fault]:
    unknown = [key for key in value if key not in fields]
    missing = [key for key, field in fields.items() if key not in value and _required(field)]
    return [Fault(dotted("", str(key)), f"unknown key; {nearest(str(key), fields)}") for key in unknown] + [
        Fault(key, f"is missing; expected {describe(fields[key].type)}") for key in missing
    ]


def _build(cls: Any, arguments: dict[str, Any]) -> Any:
    try:
        return cls(**arguments)
    except Exception as error:  # validators raise what they like; each is asked, so that all faults are told
        fields = {field.alias or field.name: field for field in attrs.fields(cls)}
        raise Faults(_validator_faults(fields, arguments, error)) from error


def _validator_faults(
    fields: Mapping[str, attrs.Attribute[Any]], arguments: Mapping[str, Any], cause: Exception | None
) -> list[Fault]:
    """What the fields' validators say one by one; if nothing, what the class itself said."""
    faults = []
    for key, value in arguments.items():
        validator = fields[key].validator
        try:
            if validator is not None:
                validator(None, fields[key], value)
        except (TypeError, ValueError) as error:
            faults.append(Fault(key, _words(error)))
        except Exception:  # noqa: BLE001 - it compares with other fields, which may be the wrong ones
            continue
    return faults or ([Fault("", _words(cause))] if cause is not None else [])


def _words(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__


def _same_sort(value: Any, expected: Any) -> bool:
    if isinstance(value, Mapping):
        return is_table(expected)
    return isinstance(value, list | tuple) and is_list(expected)


def _union_hook(expected: Any) -> Hook:
    choices = [each for each in typing.get_args(expected) if each is not type(None)]
    optional = len(choices) < len(typing.get_args(expected))

    def structure(value: Any, _: Any) -> Any:
        if value is None and optional:
            return None
        alike = [each for each in choices if _same_sort(value, each)] if len(choices) > 1 else choices
        if len(alike) == 1:  # its faults say more than "none of the forms fits"
            return _converter().structure(value, alike[0])
        for choice in choices:
            try:
                return _converter().structure(value, choice)
            except Exception:  # noqa: BLE001 - the next form may fit
                continue
        raise _wrong(value, expected)

    return structure
