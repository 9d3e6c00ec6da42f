import pytest

from protocol.control_link import ControlToWorker
from protocol.data_link import ToWorker
from protocol.endpoint import Endpoint
from protocol.link import LINK
from protocol.transport.zeromq import bind
from tests.unit.worker.world import device
from worker.core.config import CoreConfig
from worker.core.machine import WorkerCore
from worker.executors.simulated.executor import SimulatedExecutor
from worker.executors.simulated.latency import LatencyModel
from worker.server import DeviceFailed, Server
from worker.suspects import Suspects, after

LATENCY = LatencyModel(
    prefill_launch_s=1e-3,
    prefill_token_s=1e-4,
    prefill_pair_s=0.0,
    decode_launch_s=1e-3,
    decode_row_s=1e-4,
    decode_context_s=0.0,
    saturation=0.5,
    prefill_slowdown=1.0,
    decode_slowdown=1.0,
)


class Broken(SimulatedExecutor):
    """Fails as CUDA does once an error is sticky."""

    def poll(self):
        raise RuntimeError("an illegal memory access was encountered")


def test_a_device_that_fails_when_it_is_asked_ends_the_loop_by_name(tmp_path):
    info = device()
    server = Server(
        WorkerCore(CoreConfig(), info, "boot"),
        Broken(info, LATENCY, verify=False),
        Endpoint(bind(f"ipc://{tmp_path}/data"), ToWorker, LINK),
        Endpoint(bind(f"ipc://{tmp_path}/control"), ControlToWorker, LINK),
        lambda: 0.0,
        1.0,
        Suspects(bytearray(after(b""))),
    )
    with pytest.raises(DeviceFailed, match="illegal memory access"):
        server.turn()
    server.close()
