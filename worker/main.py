"""The worker process: settings in, executor and core up, then turns until SIGTERM drained it."""

import gc
import logging
import os
import signal
import sys
import time
from types import FrameType

from setproctitle import setproctitle

from protocol import logs, settings
from protocol.control_link import ControlToWorker
from protocol.data_link import ToWorker
from protocol.endpoint import Endpoint
from protocol.ids import new_id
from protocol.lifecycle import EXIT_CONFIG, Ready, Reporter, Stage, Stopped
from protocol.link import LINK
from protocol.model_files import ModelNotFound, resolve
from protocol.transport.base import AddressInUse, AddressRefused
from protocol.transport.zeromq import bind
from worker.core.config import CoreConfig
from worker.core.machine import WorkerCore
from worker.executors import factory
from worker.executors.base import DeviceInfo, Executor
from worker.server import TICK_S, DeviceFailed, Server
from worker.settings import WorkerSettings
from worker.suspects import open_suspects

log = logging.getLogger(__name__)

EXIT_DEVICE = 3
"""Exit status after a device error: a restart may help."""


class Signals:
    """SIGTERM or SIGINT asks for a drain; a second one ends at once."""

    def __init__(self) -> None:
        self.drain = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on)

    def _on(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.drain:
            os._exit(128 + number)
        self.drain = True


def start_executor(chosen: WorkerSettings, reporter: Reporter) -> Executor:
    """Resolve the model, load it, and start the lanes."""
    told = ("", -1)

    def tell(stage: str, done: int, total: int) -> None:
        nonlocal told
        percent = 100 * done // total if total else 0
        if told != (stage, percent):
            told = (stage, percent)
            reporter.send(Stage(stage, done, total))

    device = factory.choose(chosen.device)
    tell(f"starting on {device.value}", 0, 0)
    return factory.build(chosen, device, resolve(chosen.model), tell)


def core_config(chosen: WorkerSettings) -> CoreConfig:
    """Return the core's part of the settings."""
    return CoreConfig(
        max_queued_requests=chosen.max_queued_requests,
        max_queued_tokens=chosen.max_queued_tokens,
        max_num_seqs=chosen.max_num_seqs,
    )


def facts(info: DeviceInfo, boot: str) -> dict[str, str | int | float]:
    """Return what an operator wants to read when the worker is ready."""
    table = ", ".join(f"{p.prefill_units}+{p.decode_units}" for p in info.partitions[1:])
    return {
        "boot": boot,
        "pid": os.getpid(),
        "models": ", ".join(model.name for model in info.models),
        "units": f"{info.units} {info.unit}s",
        "partitions": table or "none",
        "kv_tokens": info.num_pages * info.page_size,
    }


def serve(chosen: WorkerSettings, reporter: Reporter, signals: Signals) -> None:
    """Run until drained. Raises DeviceFailed, and what binding and loading raise."""
    data_transport = bind(f"ipc://{os.path.join(chosen.run_dir, 'data')}")
    control_transport = bind(f"ipc://{os.path.join(chosen.run_dir, 'control')}")
    executor = start_executor(chosen, reporter)
    boot = new_id()
    info = executor.info
    for note in info.notes:
        log.warning("%s", note)
    suspects = open_suspects(os.path.join(chosen.run_dir, "suspects"))
    server = Server(
        WorkerCore(core_config(chosen), info, boot, barred=suspects),
        executor,
        Endpoint(data_transport, ToWorker, LINK),
        Endpoint(control_transport, ControlToWorker, LINK),
        time.monotonic,
        TICK_S,
        suspects,
    )
    gc.collect()
    gc.freeze()
    log.info("ready: boot=%s units=%d pages=%d", boot, info.units, info.num_pages)
    reporter.send(Ready(facts(info, boot)))
    try:
        server.run(lambda: signals.drain, chosen.drain_timeout_s)
    finally:
        executor.close()
        server.close()


def main(arguments: list[str] | None = None) -> int:
    """Run a worker; return the exit status."""
    chosen = settings.parse(
        WorkerSettings,
        sys.argv[1:] if arguments is None else arguments,
        os.environ,
        prog="python -m worker.main",
        description="A Tandem worker: one device, its models and its KV pool.",
    )
    reporter = Reporter(chosen.ready_fd)
    setproctitle(f"tandem-worker {chosen.model}")
    signals = Signals()
    try:
        logs.configure("worker", chosen.log_level, chosen.log_format)
        serve(chosen, reporter, signals)
    except DeviceFailed as error:
        return _stopped(reporter, str(error), EXIT_DEVICE)
    except (ModelNotFound, factory.DeviceUnavailable, AddressRefused, ValueError) as error:
        return _stopped(reporter, str(error), EXIT_CONFIG)
    except AddressInUse as error:
        return _stopped(reporter, str(error), 1)
    return _stopped(reporter, "drained", 0)


def _stopped(reporter: Reporter, reason: str, status: int) -> int:
    reporter.send(Stopped(reason))
    if status:
        log.error("%s", reason)
    return status


if __name__ == "__main__":
    sys.exit(main())
