"""Who may use an address: private directories and locks for `ipc://`, keys for `tcp://`.

Separate from the sockets because these are the rules that keep others out. Random bytes on an open
ZeroMQ port become messages, and a second bind on an ipc path succeeds and takes the peers that come
later; so an ipc socket lives in a directory of ours with a lock beside it, and TCP needs CURVE with
a list of the keys that are let in.
"""

import fcntl
import os
import stat
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from protocol.transport.base import AddressInUse, AddressRefused

MAX_IPC_PATH_BYTES = 107
"""`sun_path` of a Unix socket, less its terminating zero."""
PRIVATE = 0o700
KEY_CHARS = 40
"""A CURVE key in Z85."""


def check_address(address: str, *, has_keys: bool) -> str | None:
    """Return the path of an `ipc://` address, None for `tcp://`. Raises AddressRefused."""
    scheme, _, rest = address.partition("://")
    if scheme == "tcp":
        if not has_keys:
            raise AddressRefused(
                f"{address}: TCP needs CURVE keys; without them only ipc:// is used"
            )
        return None
    if scheme != "ipc" or not rest or rest.startswith("@"):
        raise AddressRefused(f"{address}: only ipc://PATH and tcp://HOST:PORT are used")
    if has_keys:
        raise AddressRefused(
            f"{address}: CURVE keys are for tcp://, a private directory for ipc://"
        )
    length = len(os.fsencode(rest))
    if length > MAX_IPC_PATH_BYTES:
        raise AddressRefused(
            f"{address}: the path has {length} bytes, the limit is {MAX_IPC_PATH_BYTES}; "
            "choose a shorter run directory"
        )
    _check_directory(address, os.path.dirname(rest) or ".")
    return rest


def _check_directory(address: str, directory: str) -> None:
    try:
        status = os.lstat(directory)
    except OSError as error:
        raise AddressRefused(f"{address}: {directory}: {error.strerror}") from None
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        raise AddressRefused(f"{address}: {directory} is no directory")
    if status.st_uid != os.geteuid():
        raise AddressRefused(
            f"{address}: {directory} belongs to user {status.st_uid}, this is user {os.geteuid()}"
        )
    if mode != PRIVATE:
        raise AddressRefused(f"{address}: {directory} has mode {mode:#o}, it must be {PRIVATE:#o}")


class AddressLock:
    """A lock file beside an ipc socket; the kernel releases it when the process dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let the next process bind. The file stays: removing it would race with that process."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_address(path: str) -> AddressLock:
    """Take the lock of an ipc path. Raises AddressInUse, naming the process that holds it."""
    name = path + ".lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(name, flags, 0o600)
    except OSError as error:
        raise AddressRefused(f"ipc://{path}: {name}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise AddressInUse(f"ipc://{path} is bound by process {holder} ({name})") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return AddressLock(descriptor)


def _check_key(name: str, key: bytes) -> None:
    if len(key) != KEY_CHARS:
        raise AddressRefused(f"{name} has {len(key)} characters, a Z85 key has {KEY_CHARS}")


@dataclass(frozen=True)
class CurveServer:
    """Keys of a binding side, each 40 characters of Z85."""

    secret_key: bytes = field(repr=False)
    allowed: frozenset[bytes]
    """Public keys of the clients that are let in."""

    def __post_init__(self) -> None:
        """Raise AddressRefused for what is no key."""
        _check_key("secret_key", self.secret_key)
        for key in self.allowed:
            _check_key("allowed", key)

    def apply(self, socket: "zmq.Socket[bytes]") -> None:
        """Make the socket accept encrypted, known clients only."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret_key)
        # Without a domain libzmq lets everybody in when nobody answers its question.
        socket.setsockopt(zmq.ZAP_DOMAIN, b"tandem")
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


@dataclass(frozen=True)
class CurveClient:
    """Keys of a connecting side, each 40 characters of Z85."""

    public_key: bytes
    secret_key: bytes = field(repr=False)
    server_key: bytes
    """The binder's public key."""

    def __post_init__(self) -> None:
        """Raise AddressRefused for what is no key."""
        _check_key("public_key", self.public_key)
        _check_key("secret_key", self.secret_key)
        _check_key("server_key", self.server_key)

    def apply(self, socket: "zmq.Socket[bytes]") -> None:
        """Make the socket encrypt, and talk to that binder only."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server_key)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public_key)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret_key)


class Gatekeeper:
    """Answers libzmq's question whether a client's key is let in (ZAP 1.0, RFC 27).

    Served from the owner's loop instead of a thread: a handshake waits for the next poll, which is
    a heartbeat away at most.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", allowed: frozenset[bytes]
    ) -> None:
        self._allowed = allowed
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("inproc://zeromq.zap.01")

    def serve(self) -> None:
        """Answer one question, if there is one, without blocking."""
        try:
            request = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        version, request_id, _, _, _, mechanism, *credentials = request
        known = mechanism == b"CURVE" and z85.encode(credentials[0]) in self._allowed
        status, text = (b"200", b"OK") if known else (b"400", b"unknown key")
        self._socket.send_multipart([version, request_id, status, text, b"", b""])

    def close(self) -> None:
        """Free the socket."""
        self._socket.close(0)
