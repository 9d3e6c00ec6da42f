"""`python -m ops.probe worker|scheduler|gateway`: whether that process answers, by exit status.

For the health checks of containers, which have no launcher to ask. Each is asked what only its main
loop can answer, so one that hangs is not healthy however well its sockets look.
"""

import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from ops.explain import ExplainError, ask
from protocol import PROTOCOL_VERSION
from protocol.data_link import Hello, ToGateway, ToWorker, Welcome
from protocol.endpoint import Endpoint, Received, Up
from protocol.link import LINK
from protocol.transport.base import AddressRefused
from protocol.transport.zeromq import connect
from scheduler.explain import SOCKET

TIMEOUT_S = 3.0
POLL_S = 0.01


def worker(environment: Mapping[str, str]) -> str | None:
    """Greet it as a gateway does. Return what is wrong; None: it has answered."""
    name = f"probe-{os.getpid()}"
    address = f"ipc://{environment['TANDEM_RUN_DIR']}/data"
    endpoint = Endpoint[ToGateway, ToWorker](connect(address, name.encode()), ToGateway, LINK)
    try:
        over = time.monotonic() + TIMEOUT_S
        while (now := time.monotonic()) < over:
            for event in endpoint.poll(now, 16):
                if isinstance(event, Up):
                    endpoint.send(Hello(name, PROTOCOL_VERSION), now)
                elif isinstance(event, Received) and isinstance(event.message, Welcome):
                    return None
            time.sleep(POLL_S)
    finally:
        endpoint.close()
    return f"{address}: no answer within {TIMEOUT_S:g} s"


def scheduler(environment: Mapping[str, str]) -> str | None:
    """Ask the acting one for its decisions."""
    try:
        ask(Path(environment["TANDEM_RUN_DIR"], SOCKET), TIMEOUT_S)
    except ExplainError as error:
        return str(error)
    return None


def gateway(environment: Mapping[str, str]) -> str | None:
    """Ask it whether it is ready."""
    url = f"http://127.0.0.1:{environment.get('TANDEM_PORT', '8000')}/ready"
    try:
        urllib.request.urlopen(url, timeout=TIMEOUT_S).close()
    except (OSError, urllib.error.URLError) as error:
        return f"{url}: {error}"
    return None


PROBES: Mapping[str, Callable[[Mapping[str, str]], str | None]] = {
    "worker": worker,
    "scheduler": scheduler,
    "gateway": gateway,
}


def main() -> int:
    """Return 0 when the named process answers, else say why not and return 1."""
    if len(sys.argv) != 2 or sys.argv[1] not in PROBES:
        print(f"usage: python -m ops.probe {'|'.join(PROBES)}", file=sys.stderr)
        return 2
    try:
        wrong = PROBES[sys.argv[1]](os.environ)
    except KeyError as missing:
        wrong = f"{missing.args[0]} is not set"
    except AddressRefused as error:
        wrong = str(error)
    if wrong is not None:
        print(wrong, file=sys.stderr)
    return 0 if wrong is None else 1


if __name__ == "__main__":
    sys.exit(main())
