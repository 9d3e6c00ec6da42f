"""One peer's link: what was lost, how much may be in flight, and whether the other side lives.

A state machine without I/O or clock, because ZeroMQ promises less than it seems: it loses what was
in flight when a binder dies, drops to a slow reader, and its own heartbeats are answered by a
library thread while the process hangs. Nothing is retransmitted here: both sides learn of every
loss, and resync by what their messages mean (DESIGN 2).

A *pairing* is (my session, the peer's session). Each side adopts the other's session from a frame
that answers its own session or none yet; numbers start at 1 in each pairing, and frames of another
pairing are from the past. Silence ends a pairing for good: the side that found it takes a new
session, so that the other side comes `UP` anew as well and neither goes on with half a state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from secrets import randbits

from protocol.frame import Frame, pack

MAX_REPLACED = 64
"""Sessions remembered as replaced, so that a stale process cannot take its successor's place."""


class Signal(Enum):
    """What a link has found out."""

    UP = "up"
    """A new pairing: nothing from before counts."""
    LOST = "lost"
    """Frames of this pairing were lost, in either direction."""
    DOWN = "down"
    """The pairing has ended: nothing heard, or no progress."""


@dataclass(frozen=True)
class LinkConfig:
    """Bounds of one link. Both sides of a link should have the same."""

    window: int
    """Data frames that may be unacknowledged; below the transport's high-water mark."""
    heartbeat_s: float
    silence_s: float
    """After this long without progress the peer is down; at least two heartbeats."""

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that cannot work."""
        if self.window < 1:
            raise ValueError(f"window {self.window} is below 1")
        if not 0 < self.heartbeat_s <= self.silence_s / 2:
            raise ValueError(
                f"heartbeat_s {self.heartbeat_s} is not in (0, {self.silence_s / 2}], silence_s / 2"
            )


LINK = LinkConfig(window=4096, heartbeat_s=0.2, silence_s=2.0)
"""What every process of Tandem uses."""


@dataclass
class LinkStatistics:
    """Counts since the start, over all peers of one endpoint; the last two are of now."""

    sent: int = 0
    """Data frames handed to the transport."""
    received: int = 0
    """Data frames delivered."""
    refused: int = 0
    """Messages not sent: no credit, no peer, or the transport was full."""
    gaps: int = 0
    """Losses found here in what peers sent."""
    missing: int = 0
    """Frames in those gaps."""
    reported: int = 0
    """Times a peer said that it lost frames of ours."""
    duplicates: int = 0
    stale: int = 0
    """Frames of another pairing."""
    malformed: int = 0
    """No frame, or no message of the accepted types."""
    turned_away: int = 0
    """Frames of peers above the bound on peers."""
    ups: int = 0
    downs: int = 0
    peers: int = 0
    """Peers that are up."""
    unacknowledged: int = 0
    """Data frames in flight, all peers together."""


def random_session() -> int:
    """Return 64 random bits that are not 0."""
    return randbits(64) or 1


class Link:
    """State machine of one peer. Frames in and out are values; the caller moves them."""

    def __init__(
        self,
        config: LinkConfig,
        sessions: Callable[[], int],
        statistics: LinkStatistics,
        now: float,
    ) -> None:
        """`sessions` gives a new session id (never 0, never the same twice)."""
        self._config = config
        self._sessions = sessions
        self._statistics = statistics
        self._progress = 0
        self._turned = now
        self._session = sessions()
        self._replaced: list[int] = []
        self._beat_at = now
        self._start_pairing(0)

    def _start_pairing(self, peer: int) -> None:
        self._peer = peer
        self._sent = 0
        self._acked = 0
        self._received = 0
        self._ack_sent = 0
        self._losses = 0
        self._peer_losses = 0
        self._peer_progress = -1
        self._quiet_s = 0.0
        self._owes_frame = False
        self._rejected = False

    @property
    def up(self) -> bool:
        """Whether there is a peer to send to."""
        return self._peer != 0

    @property
    def quiet_s(self) -> float:
        """Seconds without progress of the peer, as far as this side was awake to notice."""
        return self._quiet_s

    @property
    def unacknowledged(self) -> int:
        """Numbers that the peer has not acknowledged."""
        return self._sent - self._acked

    def deadline(self) -> float:
        """When `tick` is due at the latest."""
        return self._turned if self._owes_now() else self._beat_at

    def send(self, payload: bytes) -> bytes | None:
        """Return the frame to send; None without a peer or without credit.

        In a pairing the number is consumed either way, so that the peer finds the gap.
        """
        if not self.up:
            return None
        has_credit = self.unacknowledged < self._config.window
        self._sent += 1
        return self._frame(payload) if has_credit else None

    def receive(self, frame: Frame) -> tuple[list[Signal], bytes | None]:
        """Take a frame of the peer: what it told, and its payload when that is to be delivered."""
        signals: list[Signal] = []
        if frame.answers not in (0, self._session) or frame.session in self._replaced:
            self._statistics.stale += 1
            return signals, None
        if frame.session != self._peer:
            self._adopt(frame)
            signals.append(Signal.UP)
        if frame.progress > self._peer_progress:
            self._peer_progress = frame.progress
            self._quiet_s = 0.0
        if frame.answers == 0:
            return signals, None
        self._acked = max(self._acked, min(frame.acked, self._sent))
        lost = self._hear_losses(frame)
        payload, gap = self._take(frame)
        if lost or gap:
            signals.append(Signal.LOST)
        return signals, payload

    def reject(self) -> None:
        """The payload just delivered was no message. It counts as lost, at the next heartbeat.

        Not at once: a peer that answers a loss with the same bad message would keep both busy.
        """
        self._rejected = True

    def tick(self, now: float) -> tuple[list[Signal], bytes | None]:
        """One turn of the main loop: the signals that time brought, and a heartbeat when due."""
        signals: list[Signal] = []
        # What passed while this side itself did not turn is not the peer's silence, or a process
        # that was stopped would find all its peers dead on waking.
        self._quiet_s += min(now - self._turned, self._config.silence_s / 2)
        self._turned = now
        self._progress += 1
        if self.up and self._quiet_s > self._config.silence_s:
            self._end_pairing(now)
            signals.append(Signal.DOWN)
        if now >= self._beat_at:
            self._beat_at = now + self._config.heartbeat_s
            if self._rejected:
                self._rejected = False
                self._losses += 1
                signals.append(Signal.LOST)
        elif not self._owes_now():
            return signals, None
        self._owes_frame = False
        return signals, self._frame(None)

    def retry(self, now: float) -> None:
        """The transport did not take the heartbeat: try again soon, not at once."""
        self._beat_at = min(self._beat_at, now + self._config.heartbeat_s / 8)

    def _frame(self, payload: bytes | None) -> bytes:
        self._ack_sent = self._received
        return pack(
            Frame(
                session=self._session,
                answers=self._peer,
                number=self._sent,
                acked=self._received,
                losses=self._losses,
                progress=self._progress,
                payload=payload,
            )
        )

    def _owes_now(self) -> bool:
        """Whether the peer waits for a frame: an answer, a loss, or credit."""
        unsaid = self._received - self._ack_sent
        return self._owes_frame or unsaid >= max(1, self._config.window // 4)

    def _adopt(self, frame: Frame) -> None:
        if self.up:
            self._replaced = [*self._replaced, self._peer][-MAX_REPLACED:]
        self._start_pairing(frame.session)
        self._owes_frame = frame.answers == 0
        self._statistics.ups += 1

    def _end_pairing(self, now: float) -> None:
        self._session = self._sessions()
        self._start_pairing(0)
        self._beat_at = now
        self._statistics.downs += 1

    def _hear_losses(self, frame: Frame) -> bool:
        """Whether the peer reports a loss that it had not reported before."""
        if frame.losses <= self._peer_losses:
            return False
        self._peer_losses = frame.losses
        self._statistics.reported += 1
        return True

    def _take(self, frame: Frame) -> tuple[bytes | None, bool]:
        """Return the payload when it is new, and whether numbers before it are missing."""
        expected = self._received + (frame.payload is not None)
        if frame.number < expected:
            self._statistics.duplicates += frame.payload is not None
            return None, False
        gap = frame.number - expected
        self._received = frame.number
        if gap:
            self._losses += 1
            self._owes_frame = True
            self._statistics.gaps += 1
            self._statistics.missing += gap
        self._statistics.received += frame.payload is not None
        return frame.payload, gap > 0
