"""A small world for link tests: processes with endpoints on an in-memory network, virtual time.

Processes can be cut off, paused, killed and started again; each records what it sent and what it
heard, in one log per incarnation, and `judge` compares the logs.
"""

from dataclasses import dataclass, field
from itertools import count

from msgspec import Struct

from protocol.endpoint import Down, Endpoint, Lost, PeerEvent, Received, Up
from protocol.link import LinkConfig
from protocol.transport.base import SERVER
from protocol.transport.memory import MemoryTransport, Network

CONFIG = LinkConfig(window=8, heartbeat_s=0.1, silence_s=1.0)
ADDRESS = "worker"
STEP_S = 0.01


class Note(Struct, frozen=True, tag=True):
    """The n-th thing that an incarnation of a process said."""

    sender: str
    n: int


@dataclass
class Sent:
    note: Note
    taken: bool


@dataclass
class Process:
    """One incarnation of a process."""

    name: str
    peers: tuple[str, ...]
    transport: MemoryTransport
    endpoint: Endpoint[Note, Note]
    paused: bool = False
    said: int = 0
    logs: dict[bytes, list[Sent | PeerEvent[Note]]] = field(default_factory=dict)

    def say(self, peer: bytes, now: float) -> bool:
        note = Note(self.name, self.said)
        self.said += 1
        taken = self.endpoint.send(note, now, peer)
        self.log(peer).append(Sent(note, taken))
        return taken

    def log(self, peer: bytes) -> list[Sent | PeerEvent[Note]]:
        return self.logs.setdefault(peer, [])

    def turn(self, now: float) -> int:
        events = self.endpoint.poll(now)
        for event in events:
            self.log(event.peer).append(event)
        return len(events)


class World:
    """A worker that binds and clients that connect."""

    def __init__(
        self, *clients: str, config: LinkConfig = CONFIG, latency_s: float = 0.003
    ) -> None:
        self.network = Network(latency_s)
        self.config = config
        self.processes: dict[str, Process] = {}
        self._sessions = count(1)
        self._incarnations = count()
        self.start("worker")
        for client in clients:
            self.start(client)

    def start(self, role: str) -> Process:
        """Start a process, after killing the one that has the role."""
        if role in self.processes:
            self.network.kill(self.processes[role].transport, keep=0)
        binds = role == "worker"
        transport = (
            self.network.bind(ADDRESS) if binds else self.network.connect(ADDRESS, role.encode())
        )
        endpoint = Endpoint[Note, Note](
            transport, Note, self.config, sessions=lambda: next(self._sessions)
        )
        name = f"{role}{next(self._incarnations)}"
        self.processes[role] = Process(name, (), transport, endpoint)
        return self.processes[role]

    def run(self, seconds: float) -> int:
        """Let time pass; return how many events there were."""
        events = 0
        for _ in range(round(seconds / STEP_S)):
            self.network.advance(self.network.now + STEP_S)
            events += sum(p.turn(self.network.now) for p in self.processes.values() if not p.paused)
        return events

    def say(self, role: str, to: str, times: int = 1) -> int:
        """Let a process say something; return how often the link took it."""
        process = self.processes[role]
        if process.paused:
            return 0
        peer = SERVER if to == "worker" else to.encode()
        return sum(process.say(peer, self.network.now) for _ in range(times))

    def log_of(self, role: str, about: str) -> list[Sent | PeerEvent[Note]]:
        return self.processes[role].log(SERVER if about == "worker" else about.encode())

    def heard(self, role: str, about: str) -> list[Note]:
        return [e.message for e in self.log_of(role, about) if isinstance(e, Received)]

    def count(self, kind: type[Up | Lost | Down], role: str, about: str) -> int:
        return sum(isinstance(entry, kind) for entry in self.log_of(role, about))


def judge(world: World, sender: str, receiver: str) -> None:
    """Raise AssertionError unless all that `sender` said to `receiver` arrived or was reported.

    To be called after both have talked again over a healed link.
    """
    said = world.log_of(sender, receiver)
    heard = world.log_of(receiver, sender)
    name = world.processes[sender].name
    in_order: list[int] = []
    noticed = False
    for entry in heard:
        if isinstance(entry, Up | Lost):
            noticed = True
        elif isinstance(entry, Received) and entry.message.sender == name:
            n = entry.message.n
            assert not in_order or n > in_order[-1], "repeated or out of order"
            skipped = _between(said, in_order[-1] if in_order else -1, n)
            assert noticed or not skipped, f"{skipped} before {n} are missing without a word"
            in_order.append(n)
            noticed = False
    arrived = set(in_order)
    noticed = False
    for entry in reversed(said):
        if isinstance(entry, Up | Lost):
            noticed = True
        elif isinstance(entry, Sent) and entry.note.n not in arrived:
            assert noticed, f"the sender never heard that {entry.note.n} is lost"
        if isinstance(entry, Sent) and not entry.taken:
            assert entry.note.n not in arrived, "arrived, though the link did not take it"


def _between(said: list[Sent | PeerEvent[Note]], after: int, before: int) -> list[int]:
    return [s.note.n for s in said if isinstance(s, Sent) and after < s.note.n < before]
