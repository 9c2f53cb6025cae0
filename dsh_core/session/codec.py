"""
Events as bytes, and back (S-1). What is encoded at the append is what is written: one encoding an event.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dsh_core.errors import NotSerializable, SessionCorrupt
from dsh_core.session._classes import class_rule, is_frozen
from dsh_core.session._json import Misfit, scrubbed
from dsh_core.session._registry import EventType, event_type_named
from dsh_core.session.event import Replace, SessionEvent, known_type, make_event, release_bytes
from dsh_core.session.events import UnknownEvent

if TYPE_CHECKING:
    from dsh_core.session._rules import Convert

__all__ = [
    "Replace",
    "SessionEvent",
    "decode_event",
    "encode_event",
    "encode_record",
    "make_event",
    "prepare_data",
    "release_bytes",
]


# -- one codec for each class ----------------------------------------------------------------------------


class _Codec:
    """How one class of events is written and read, looked up once."""

    __slots__ = ("cls", "head", "mutable", "read", "record", "tail", "type", "write")

    def __init__(self, cls: type, event_type: EventType) -> None:
        try:
            rule = class_rule(cls)
        except TypeError as error:
            raise NotSerializable(f"event {event_type.name!r}: {error}") from error
        self.cls, self.type, self.mutable = cls, event_type, not is_frozen(cls)
        self.write: Convert = rule.write
        self.read: Convert = rule.read
        self.head = b'{"seq":%%d,"time":%%d,"type":"%b","data":%%b' % event_type.name.encode()
        self.tail = b',"v":%d' % event_type.version if event_type.version != 1 else b""
        if event_type.ignorable:
            self.tail += b',"ignorable":true'
        self.record = self.head + self.tail + b"}"


_codecs: Final[dict[type, _Codec]] = {}  # a cache: what a class says of itself, worked out at its first event


def _codec_of(cls: type) -> _Codec:
    codec = _codecs.get(cls)
    if codec is None:
        codec = _codecs[cls] = _Codec(cls, known_type(cls))
    return codec


# -- writing ---------------------------------------------------------------------------------------------

_encode: Final = msgspec.json.Encoder().encode


def prepare_data(data: Any) -> tuple[Any, bytes]:
    """
    Check event data, and make the snapshot and the bytes of it.

    Args:
        data: An instance of a registered event class.

    Returns:
        What goes into the log, the data themselves if nobody can change them, and its JSON.

    Raises:
        NotSerializable: A field has the wrong type or does not survive JSON; names event type and path.
    """
    codec = _codecs.get(type(data)) or _codec_of(type(data))
    notes: list[str] = []
    try:
        wire = codec.write(data, notes)
        try:
            encoded = _encode(wire)
        except UnicodeEncodeError:
            wire = scrubbed(wire)
            encoded = _encode(wire)
            notes.append("scrubbed")
        return (codec.read(wire, []) if notes else data), encoded
    except Misfit as misfit:
        raise NotSerializable(f"event {codec.type.name!r}: {misfit.path('$')} {misfit.why}") from None
    except RecursionError:
        raise NotSerializable(f"event {codec.type.name!r}: it is nested too deeply") from None


def encode_record(
    cls: type, seq: int, time: int, data: bytes, surface: Replace | None, sources: tuple[int, ...]
) -> bytes:
    """The whole record of an event from the JSON of its data."""
    codec = _codecs.get(cls) or _codec_of(cls)
    if surface is None and not sources:
        return codec.record % (seq, time, data)
    record = codec.head % (seq, time, data) + codec.tail
    if surface is not None:
        record += b',"surface":{"replace":[%d,%d]}' % (surface.first, surface.last)
    if sources:
        record += b',"sources":' + _encode(sources)
    return record + b"}"


def encode_event(event: SessionEvent) -> bytes:
    """
    The record of an event: compact UTF-8 JSON without a line end.

    Events of unknown types, and those with members this version does not know, come out byte for byte as
    they were read.

    Raises:
        NotSerializable: The event was made by hand, and its data do not survive JSON.
    """
    if event._encoded is not None:
        return event._encoded
    if event._read is not None:
        return event._read
    if type(event.data) is UnknownEvent:
        return event.data.raw
    data = prepare_data(event.data)[1]
    return encode_record(type(event.data), event.seq, event.time, data, event.surface, event.sources)


# -- reading ---------------------------------------------------------------------------------------------


class _Surface(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    replace: tuple[int, int]


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seq: int
    time: int
    type: str
    data: dict[str, Any]
    v: int = 1
    ignorable: bool = False
    surface: _Surface | None = None
    sources: tuple[int, ...] = ()


class _OpenSurface(msgspec.Struct, frozen=True):
    replace: tuple[int, int]


class _OpenEnvelope(msgspec.Struct, frozen=True):
    seq: int
    time: int
    type: str
    data: dict[str, Any]
    v: int = 1
    ignorable: bool = False
    surface: _OpenSurface | None = None
    sources: tuple[int, ...] = ()


_decode: Final = msgspec.json.Decoder(_Envelope).decode
_STORED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


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
    kept: bytes | None = None
    envelope: _Envelope | _OpenEnvelope
    try:
        envelope = _decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        envelope, kept = _decode_openly(record)
    event_type = event_type_named(envelope.type)
    if event_type is None or envelope.v > event_type.version:
        return _event(envelope, UnknownEvent(envelope.type, bytes(record)), None)
    notes: list[str] = []
    data = _structured(envelope, event_type, notes)
    if notes or (envelope.v, envelope.ignorable) != (event_type.version, event_type.ignorable):
        kept = kept or bytes(record)
    return _event(envelope, data, kept)


def _event(envelope: _Envelope | _OpenEnvelope, data: Any, read: bytes | None) -> SessionEvent:
    surface = envelope.surface
    mark = Replace(*surface.replace) if surface is not None else None
    return make_event(envelope.seq, envelope.time, data, mark, envelope.sources, read=read)


def _structured(envelope: _Envelope | _OpenEnvelope, event_type: EventType, notes: list[str]) -> Any:
    try:
        return _codec_of(event_type.cls).read(envelope.data, notes)
    except Misfit as misfit:
        reason = f"{misfit.path('data')} {misfit.why}"
    except Exception as error:  # noqa: BLE001 - a plugin's class checks its fields as it likes
        reason = f"{type(error).__name__}: {error}"
    raise SessionCorrupt(f"event {envelope.seq} ({envelope.type}) does not fit its type: {reason}")


def _decode_openly(record: bytes) -> tuple[_OpenEnvelope, bytes]:
    """The envelope of a record with members of a later version, or with the half surrogates of an older one."""
    try:
        return msgspec.json.decode(record, type=_OpenEnvelope), bytes(record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not _STORED_SURROGATE.search(record):
            raise SessionCorrupt(f"not an event record: {error}") from error
    import json

    try:
        # Half a surrogate pair is legal in JSON's escapes and not in text; it is read as U+FFFD and goes out clean.
        value = scrubbed(json.loads(record, parse_constant=_refuse_constant))
        return msgspec.convert(value, _OpenEnvelope), _encode(value)
    except (ValueError, RecursionError) as error:
        raise SessionCorrupt(f"not an event record: {error}") from error


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
