"""
Server-sent events from bytes. Knows nothing of models: bytes in, events out, wherever the bytes were cut.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Event", "EventParser"]


class Event(NamedTuple):
    """
    One event.

    Args:
        name: The `event:` field, empty when there was none.
        data: The `data:` lines, joined by line feeds.
    """

    name: bytes
    data: bytes


class EventParser:
    """
    An incremental parser. Lines end with LF, CRLF or CR; comments and unknown fields are skipped.

    A body that is no event stream gives no events; the caller keeps the bytes if it wants to know why.
    """

    __slots__ = ("_data", "_first", "_name", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # the unfinished line, in pieces: joining once keeps long lines linear
        self._data: list[bytes] = []
        self._name = b""
        self._first = True

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        if self._is_one_event(data):  # what nearly every read of a stream of deltas gives
            return [Event(b"", data[6:-2])]
        if b"\n" not in data:
            if data:
                self._parts.append(data)
            return []
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts.clear()
        lines = data.split(b"\n")
        if rest := lines.pop():
            self._parts.append(rest)
        return self._take(lines)

    def _is_one_event(self, data: bytes) -> bool:
        return (
            data[:7] == b"data: {"
            and data[-2:] == b"\n\n"
            and not (self._first or self._parts or self._data or self._name)
            and data.count(b"\n") == 2
            and b"\r" not in data
        )

    def close(self) -> list[Event]:
        """The events left at the end of the body; the last one may lack its blank line."""
        rest = b"".join(self._parts)
        self._parts.clear()
        events = self._take([rest]) if rest else []
        self._dispatch(events)
        return events

    def _take(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        for line in lines:
            if b"\r" in line:
                for part in line.removesuffix(b"\r").split(b"\r"):
                    self._line(part, events)
            else:
                self._line(line, events)
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if line.startswith(b"data:"):
            value = line[6:] if line[5:6] == b" " else line[5:]
            if self._data and value[:1] in (b"{", b"[") and self._data[-1][-1:] == b"}":
                self._dispatch(events)  # a server that forgets the blank line between two objects
            self._data.append(value)
        elif not line:
            self._dispatch(events)
        elif line.startswith(b"event:"):
            self._name = line[6:].strip()
        elif line.startswith(b"error:"):  # llama.cpp reports failures in a field of its own
            self._name = b"error"
            self._data.append(line[6:].strip())

    def _dispatch(self, events: list[Event]) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(Event(self._name, data))
            self._data.clear()
        self._name = b""
