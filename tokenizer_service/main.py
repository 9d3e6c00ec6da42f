"""The gateway process: settings in, HTTP up, then requests until SIGTERM has drained it."""

import asyncio
import logging
import os
import signal
import sys
import time

import msgspec
from aiohttp import web
from setproctitle import setproctitle

from protocol import logs, settings
from protocol.data_link import ToGateway, ToWorker
from protocol.endpoint import Endpoint
from protocol.ids import new_id
from protocol.lifecycle import EXIT_CONFIG, Ready, Reporter, Stage, Stopped
from protocol.link import LINK
from protocol.model_files import ModelNotFound, resolve
from protocol.transport.base import AddressRefused
from protocol.transport.zeromq import connect
from tokenizer_service import app, assets
from tokenizer_service.gateway import Gateway
from tokenizer_service.gguf_metadata import BadGgufError
from tokenizer_service.gguf_tokenizer import UnsupportedTokenizerError
from tokenizer_service.prefix_names import BadSecretError, PrefixNames, read_secret
from tokenizer_service.registry import Registry
from tokenizer_service.router import Router
from tokenizer_service.settings import GatewaySettings
from tokenizer_service.templates import TemplateRefusedError
from tokenizer_service.tracing import NoTracing, TracingUnavailableError, exporting
from tokenizer_service.worker_link import WorkerLink

log = logging.getLogger(__name__)

GOODBYE_S = 2.0
"""For the last frames of streams that the drain has cut."""

NEVER_WORKS = (
    ModelNotFound,
    BadGgufError,
    UnsupportedTokenizerError,
    TemplateRefusedError,
    BadSecretError,
    AddressRefused,
    TracingUnavailableError,
    msgspec.DecodeError,
    OSError,
)
"""What a start raises for a configuration or a model that no restart will mend."""


def main() -> int:
    """Run a gateway; return its exit status."""
    given = settings.parse(
        GatewaySettings,
        sys.argv[1:],
        os.environ,
        prog="tokenizer_service",
        description="HTTP gateway: OpenAI's API in front of a worker.",
    )
    logs.configure("gateway", given.log_level, given.log_format)
    setproctitle("tandem-gateway")
    reporter = Reporter(given.ready_fd)
    try:
        asyncio.run(_serve(given, reporter))
    except NEVER_WORKS as error:
        log.error("cannot start: %s", error)
        reporter.send(Stopped(str(error)))
        return EXIT_CONFIG
    return 0


async def _serve(given: GatewaySettings, reporter: Reporter) -> None:
    reporter.send(Stage("tokenizer"))
    files = resolve(given.model)
    loaded = assets.load(files, given.load_format)
    names = PrefixNames(read_secret(given.cache_secret_file))
    identity = f"gw-{new_id()}"
    endpoint = Endpoint[ToGateway, ToWorker](
        connect(f"ipc://{given.run_dir}/data", identity.encode()), ToGateway, LINK
    )
    registry = Registry(identity, worker_wait_s=given.worker_wait_s, now=time.monotonic())
    link = WorkerLink(endpoint, registry, time.monotonic)
    router = Router([link], given.served_model_name or (files.name,))
    endpoint_url = given.otlp_traces_endpoint
    tracing = exporting(endpoint_url, time.monotonic) if endpoint_url else NoTracing()
    gateway = Gateway(given, loaded, router, names, time.monotonic, tracing)
    try:
        await _run(gateway, link, reporter)
    finally:
        tracing.close()
        gateway.pool.close()
        endpoint.close()


async def _run(gateway: Gateway, link: WorkerLink, reporter: Reporter) -> None:
    """Serve until a signal; a link that fails takes the process with it."""
    stop = _stop_on_signals()
    running = asyncio.create_task(link.run())
    runner = web.AppRunner(
        app.build(gateway),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=GOODBYE_S,
    )
    await runner.setup()
    try:
        url = await _listen(runner, gateway.settings)
        log.info("serving %s model=%s", url, gateway.router.served[0])
        reporter.send(Ready({"url": url, "model": gateway.router.served[0]}))
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        await _drain(gateway, link)
    finally:
        await runner.cleanup()
        running.cancel()


async def _listen(runner: web.AppRunner, given: GatewaySettings) -> str:
    """Open the port; return the server's URL."""
    await web.TCPSite(runner, given.host, given.port).start()
    port = runner.addresses[0][1]
    host = f"[{given.host}]" if ":" in given.host else given.host
    return f"http://{host}:{port}"


async def _drain(gateway: Gateway, link: WorkerLink) -> None:
    """Take nothing new, let what runs finish in time, and tell the others that it ends."""
    gateway.draining = True
    log.info("draining")
    if await gateway.wait_idle(gateway.settings.drain_timeout_s):
        return
    cut = link.break_all("the gateway is stopping")
    log.warning("drain timeout: %d requests cut", cut)
    await gateway.wait_idle(GOODBYE_S)


def _stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets; a second one ends the process at once."""
    stop = asyncio.Event()

    def on(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on, number)
    return stop


if __name__ == "__main__":
    sys.exit(main())
