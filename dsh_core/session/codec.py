"""
Events as bytes, and back (S-1). What is encoded at the append is what is written: one encoding an event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import attrs
import msgspec

from dsh_core.errors import NotSerializable, SessionCorrupt
from dsh_core.session._fields import Field, _flag, _integer, _text, fields_of
from dsh_core.session._json import MAX_INT, scrub
from dsh_core.session._registry import EventType, event_type_named, event_type_of
from dsh_core.session.events import AssistantChunkEvent, UnknownEvent

__all__ = ["Replace", "SessionEvent", "decode_event", "encode_event", "prepare_data", "prepare_pack", "release_bytes"]

_encode: Final = msgspec.json.Encoder().encode


@attrs.frozen
class Replace:
    """
    The surface mark of an event that takes the place of a run of nodes.

    Args:
        first: Seq of the first node of the run, by position.
        last: Seq of the last.
    """

    first: int
    last: int


@attrs.frozen
class SessionEvent:
    """
    One event of a log.

    Args:
        seq: Its index in the log.
        time: Epoch milliseconds; never decreases within a session.
        data: What happened, an instance of a registered event class.
        surface: The run of nodes it replaces, or None.
        sources: Seqs of the events it was made from.
    """

    seq: int
    time: int
    data: Any = attrs.field(hash=False)
    surface: Replace | None = None
    sources: tuple[int, ...] = ()
    _encoded: bytes | None = attrs.field(default=None, eq=False, repr=False)
    _keeps_bytes: bool = attrs.field(default=False, eq=False, repr=False)

    @property
    def type(self) -> str:
        """Wire name of the event's type."""
        data = self.data
        return data.type if type(data) is UnknownEvent else _type_of(type(data)).name

    @property
    def ignorable(self) -> bool:
        """Whether a reader that does not know the type may leave the event out."""
        if type(self.data) is UnknownEvent:
            return b'"ignorable":true' in self.data.raw and _envelope(self.data.raw).ignorable
        return _type_of(type(self.data)).ignorable


class _Surface(msgspec.Struct, frozen=True):
    replace: tuple[int, int]


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    seq: int
    time: int
    type: str
    data: msgspec.Raw = msgspec.Raw(b"{}")
    v: int = 1
    ignorable: bool = False
    surface: _Surface | None = None
    sources: tuple[int, ...] = ()


_STORED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_decode_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_decode: Final = msgspec.json.Decoder().decode


def _envelope(record: bytes) -> _Envelope:
    try:
        return _decode_envelope(record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not _STORED_SURROGATE.search(record):
            raise SessionCorrupt(f"not an event record: {error}") from error
    return _poisoned_envelope(record)


def _poisoned_envelope(record: bytes) -> _Envelope:
    """The envelope of an older writer's record, with U+FFFD in place of the half surrogate pairs it escaped."""
    import json

    try:
        return _decode_envelope(_encode(_scrubbed(json.loads(record))))
    except (msgspec.DecodeError, ValueError) as error:
        raise SessionCorrupt(f"not an event record: {error}") from error


@cache
def _type_of(cls: type) -> EventType:
    found = event_type_of(cls)
    if found is None:
        raise NotSerializable(
            f"{cls.__name__} is not an event class; register it with @session_event('area/what')"
        )
    return found


@cache
def _fields(cls: type) -> tuple[Field, ...]:
    return fields_of(cls)


@cache
def _by_name(cls: type) -> Mapping[str, Field]:
    return {field.name: field for field in _fields(cls)}


@cache
def _template(cls: type) -> tuple[bytes, bytes]:
    """What stands before and behind the data of a plain event; `%d` for seq and time."""
    kind = _type_of(cls)
    head = b'{"seq":%d,"time":%d,"type":' + _encode(kind.name) + b',"data":'
    tail = b""
    if kind.version != 1:
        tail += b',"v":%d' % kind.version
    if kind.ignorable:
        tail += b',"ignorable":true'
    return head, tail


# -- writing ---------------------------------------------------------------------------------------------


def prepare_data(data: Any) -> tuple[Any, bytes]:
    """
    Check event data, and make the snapshot and the bytes of it.

    Args:
        data: An instance of a registered event class.

    Returns:
        The snapshot that goes into the log, and its JSON.

    Raises:
        NotSerializable: A field has the wrong type or does not survive JSON.
    """
    cls = type(data)
    try:
        wire = _writer(cls)(data)
    except NotSerializable as error:
        raise NotSerializable(f"event {_type_of(cls).name!r}: {error.message}") from None
    try:
        encoded = _encode(wire)
    except (UnicodeEncodeError, ValueError):
        wire = _scrubbed(wire)
        return _from_wire(cls, wire), _encode(wire)
    return (_snapshot(data, cls, wire) if _needs_snapshot(cls) else data), encoded


def prepare_pack(data: AssistantChunkEvent) -> tuple[AssistantChunkEvent, bytes]:
    """The same for a pack that the packer made: its entries are lists of checked values nobody else holds."""
    wire: dict[str, Any] = {"turn": data.turn, "step": data.step}
    if data.attempt != 1:
        wire["attempt"] = data.attempt
    wire["chunks"] = data.chunks
    try:
        return data, _encode(wire)
    except (UnicodeEncodeError, ValueError):
        wire = _scrubbed(wire)
        return _from_wire(AssistantChunkEvent, wire), _encode(wire)


_INLINE: Final = {_text: "type(v) is str", _flag: "type(v) is bool", _integer: "type(v) is int and -MAX_INT <= v <= MAX_INT"}


@cache
def _writer(cls: type) -> Callable[[Any], dict[str, Any]]:
    """
    A function from an event to its wire form, written out field by field.

    Appending is the hottest path of the core, and a loop over a table of fields costs three times as much.
    """
    lines = ["def write(data):", "    wire = {}"]
    names: dict[str, Any] = {"MAX_INT": MAX_INT}
    for number, field in enumerate(_fields(cls)):
        names[f"check{number}"], names[f"default{number}"] = field.to_wire, field.default
        lines.append(f"    v = data.{field.name}")
        indent = "    "
        if field.default is not attrs.NOTHING:
            lines.append(f"    if v is not default{number} and (v != default{number} or {_kinds_differ(number)}):")
            indent = "        "
        inline = _INLINE.get(field.to_wire)
        checked = f"check{number}(v, {field.name!r})"
        value = f"v if {inline} else {checked}" if inline else checked
        lines.append(f"{indent}wire[{field.name!r}] = {value}")
    lines.append("    return wire")
    exec("\n".join(lines), names)  # noqa: S102 - the source is made of field names of the class alone
    writer: Callable[[Any], dict[str, Any]] = names["write"]
    return writer


def _kinds_differ(number: int) -> str:
    # False == 0 == 0.0, but they are different values in JSON.
    return f"type(v) is not type(default{number})"


@cache
def _needs_snapshot(cls: type) -> bool:
    return bool(_free_fields(cls)) or not cls.__module__.startswith("dsh_core.")


@cache
def _free_fields(cls: type) -> tuple[Field, ...]:
    return tuple(field for field in _fields(cls) if field.free)


def _snapshot(data: Any, cls: type, wire: dict[str, Any]) -> Any:
    """The data that go into the log: what could still be changed from outside is a frozen copy."""
    if not cls.__module__.startswith("dsh_core."):
        return _from_wire(cls, wire)  # a plugin's class may be mutable as a whole
    changes = {field.name: field.from_wire(wire[field.name]) for field in _free_fields(cls) if field.name in wire}
    return attrs.evolve(data, **changes) if changes else data


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {scrub(key): _scrubbed(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(member) for member in value]
    return value


def encode_record(cls: type, seq: int, time: int, data: bytes, surface: Replace | None, sources: tuple[int, ...]) -> bytes:
    """The whole record of an event from the JSON of its data."""
    head, tail = _template(cls)
    if surface is None and not sources:
        return b"%b%b%b}" % (head % (seq, time), data, tail)
    end = tail
    if surface is not None:
        end += b',"surface":{"replace":[%d,%d]}' % (surface.first, surface.last)
    if sources:
        end += b',"sources":' + _encode(sources)
    return head % (seq, time) + data + end + b"}"


def encode_event(event: SessionEvent) -> bytes:
    """
    The record of an event: compact UTF-8 JSON without a line end.

    Events of unknown types, and those with members this version does not know, come out byte for byte as
    they were read.
    """
    if event._encoded is not None:
        return event._encoded
    if type(event.data) is UnknownEvent:
        raw: bytes = event.data.raw
        return raw
    _, data = prepare_data(event.data)
    return encode_record(type(event.data), event.seq, event.time, data, event.surface, event.sources)


def release_bytes(event: SessionEvent) -> None:
    """Let go of the bytes of an event that has been written."""
    if not event._keeps_bytes:
        object.__setattr__(event, "_encoded", None)


# -- reading ---------------------------------------------------------------------------------------------


def decode_event(record: bytes) -> SessionEvent:
    """
    Read one record.

    Args:
        record: The JSON of one event.

    Returns:
        The event; one of an unknown type or a newer version of a known one has `UnknownEvent` as its data.

    Raises:
        SessionCorrupt: It is not a record, or its data do not fit their type.
    """
    envelope = _envelope(record)
    surface = Replace(*envelope.surface.replace) if envelope.surface is not None else None
    kind = event_type_named(envelope.type)
    if kind is None or envelope.v > kind.version:
        unknown = UnknownEvent(envelope.type, bytes(record))
        return SessionEvent(envelope.seq, envelope.time, unknown, surface, envelope.sources)
    try:
        wire = _wire_of(envelope.data, record)
        data = _from_wire(kind.cls, wire)
        extra = not wire.keys() <= _by_name(kind.cls).keys()
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.DecodeError, NotSerializable) as error:
        raise SessionCorrupt(
            f"event {envelope.seq} ({envelope.type}) does not fit its type: {type(error).__name__}: {error}"
        ) from error
    kept = bytes(record) if extra else None
    return SessionEvent(envelope.seq, envelope.time, data, surface, envelope.sources, kept, extra)


def _wire_of(raw: msgspec.Raw, record: bytes) -> dict[str, Any]:
    if _STORED_SURROGATE.search(record):
        # Older writers escaped half surrogate pairs; they are read as U+FFFD and go out clean.
        import json

        wire = _scrubbed(json.loads(bytes(raw)))
    else:
        wire = _decode(raw)
    if type(wire) is not dict:
        raise TypeError("data is not an object")
    return wire


def _from_wire(cls: type, wire: Mapping[str, Any]) -> Any:
    fields = _by_name(cls)
    values = {}
    for name, value in wire.items():
        field = fields.get(name)
        if field is not None:
            values[name] = field.from_wire(value)
    data = cls(**values)
    return data
