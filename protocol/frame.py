"""The header in front of every message on a link, and nothing but it in a heartbeat.

Fixed width and separate from the messages: a link must number, acknowledge and count frames whose
content it does not understand.
"""

from dataclasses import dataclass
from struct import Struct

LINK_VERSION = 1
"""Of this header. Frames of another version are malformed; the hello carries PROTOCOL_VERSION."""

_HEADER = Struct(">2sBB6Q")
_MAGIC = b"TL"

HEADER_BYTES = _HEADER.size
"""52."""

_HEARTBEAT = 0
_DATA = 1


class BadFrame(Exception):
    """Bytes that are no frame of this version."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, in either direction."""

    session: int
    """Of the sender's link; never 0."""
    answers: int
    """Session of the receiver that the sender is paired with; 0: it knows none yet."""
    number: int
    """Of this data frame, from 1; in a heartbeat, of the last data frame sent or given up."""
    acked: int
    """Last number that the sender has taken from the receiver's frames, gaps counted."""
    losses: int
    """Gaps that the sender has seen in the receiver's frames."""
    progress: int
    """Turns of the sender's main loop."""
    payload: bytes | None
    """None: a heartbeat."""


def pack(frame: Frame) -> bytes:
    """Return the frame's bytes."""
    kind = _HEARTBEAT if frame.payload is None else _DATA
    header = _HEADER.pack(
        _MAGIC,
        LINK_VERSION,
        kind,
        frame.session,
        frame.answers,
        frame.number,
        frame.acked,
        frame.losses,
        frame.progress,
    )
    return header if frame.payload is None else header + frame.payload


def unpack(data: bytes) -> Frame:
    """Read a frame. Raises BadFrame."""
    if len(data) < HEADER_BYTES:
        raise BadFrame(f"{len(data)} bytes, a header has {HEADER_BYTES}")
    magic, version, kind, session, answers, number, acked, losses, progress = _HEADER.unpack_from(
        data
    )
    if magic != _MAGIC or version != LINK_VERSION or session == 0:
        raise BadFrame(f"magic {magic!r}, version {version}, session {session}")
    if kind not in (_HEARTBEAT, _DATA) or (kind == _HEARTBEAT and len(data) > HEADER_BYTES):
        raise BadFrame(f"kind {kind} with {len(data)} bytes")
    payload = data[HEADER_BYTES:] if kind == _DATA else None
    return Frame(session, answers, number, acked, losses, progress, payload)
