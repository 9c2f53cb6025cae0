"""
The session: an append-only log of events, and what is read from it.
"""

from __future__ import annotations

from dsh_core.session.chunks import unpack_chunks
from dsh_core.session.codec import decode_event, encode_event
from dsh_core.session.event import Replace, SessionEvent
from dsh_core.session.events import session_event
from dsh_core.session.header import SessionHeader, decode_header, encode_header
from dsh_core.session.log import EventLog, Session
from dsh_core.session.projection import MessageView
from dsh_core.session.repair import interrupted_turn_closers, is_balanced
from dsh_core.session.request import rebuild_request
from dsh_core.session.sink import SessionSink
from dsh_core.session.store import SessionStore
from dsh_core.session.surface import Surface

__all__ = [
    "EventLog",
    "MessageView",
    "Replace",
    "Session",
    "SessionEvent",
    "SessionHeader",
    "SessionSink",
    "SessionStore",
    "Surface",
    "decode_event",
    "decode_header",
    "encode_event",
    "encode_header",
    "interrupted_turn_closers",
    "is_balanced",
    "rebuild_request",
    "session_event",
    "unpack_chunks",
]
