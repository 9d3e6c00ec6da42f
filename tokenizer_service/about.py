"""What the server says of itself: health, models, versions, and what the worker last reported."""

import time
from importlib import metadata

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from protocol import PROTOCOL_VERSION
from tokenizer_service.gateway import Gateway
from tokenizer_service.http import GATEWAY, answer
from tokenizer_service.openai import models, openapi
from tokenizer_service.openai.errors import RETRY_AFTER_S

STARTED = web.AppKey("started", int)
"""Unix time in seconds."""


def add_routes(app: web.Application) -> None:
    """Add the paths, each health check also under the names that other servers have."""
    app[STARTED] = int(time.time())
    router = app.router
    router.add_get("/v1/models", _models)
    router.add_get("/v1/models/{model:.+}", _model)
    for path in READY_PATHS:
        router.add_get(path, _ready)
    for path in LIVE_PATHS:
        router.add_get(path, _live)
    router.add_get("/version", _version)
    router.add_get("/metrics", _metrics)
    router.add_get("/openapi.json", _openapi)
    router.add_get("/model_info", _model_info)
    router.add_get("/server_info", _server_info)


READY_PATHS = ("/health", "/health/ready", "/ready")
LIVE_PATHS = ("/health/live", "/live")


async def _models(http: web.Request) -> web.Response:
    return answer(models.list_all(http.app[GATEWAY].router, http.app[STARTED]))


async def _model(http: web.Request) -> web.Response:
    name = http.match_info["model"]
    return answer(models.describe(name, http.app[GATEWAY].router, http.app[STARTED]))


async def _live(http: web.Request) -> web.Response:
    return answer({"status": "live"})


async def _ready(http: web.Request) -> web.Response:
    reason = http.app[GATEWAY].not_ready()
    if reason is None:
        return answer({"status": "ready"})
    response = answer({"status": "not ready", "reason": reason}, status=503)
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


async def _version(http: web.Request) -> web.Response:
    return answer({"version": package_version(), "protocol": PROTOCOL_VERSION})


async def _openapi(http: web.Request) -> web.Response:
    return answer(openapi.document(package_version()))


async def _metrics(http: web.Request) -> web.Response:
    text = http.app[GATEWAY].metrics.text()
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _model_info(http: web.Request) -> web.Response:
    gateway = http.app[GATEWAY]
    known = gateway.router.known_model()
    return answer(
        {
            **_identity(gateway),
            "served_model_names": list(gateway.router.served),
            "model": msgspec.to_builtins(known) if known else None,
            "has_chat_template": gateway.assets.template is not None,
            "default_sampling": msgspec.to_builtins(gateway.assets.defaults),
        }
    )


def _identity(gateway: Gateway) -> dict[str, str | bool]:
    """Return what routers ask a server for, by the names that they look for."""
    name = gateway.router.served[0]
    return {
        "model_path": name,
        "tokenizer_path": name,
        "served_model_name": name,
        "is_generation": True,
    }


async def _server_info(http: web.Request) -> web.Response:
    gateway = http.app[GATEWAY]
    workers = [
        {
            "phase": worker.phase.value,
            "boot": worker.boot,
            "max_requests": worker.max_requests,
            "max_prompt_tokens": worker.max_prompt_tokens,
            "credits": msgspec.to_builtins(worker.credits),
            "load": msgspec.to_builtins(worker.load),
        }
        for worker in (link.worker for link in gateway.router.links)
    ]
    return answer(
        {
            **_identity(gateway),
            "version": package_version(),
            "protocol": PROTOCOL_VERSION,
            "started": http.app[STARTED],
            "not_ready": gateway.not_ready(),
            "workers": workers,
        }
    )


def package_version() -> str:
    """Return the version of the installed package, or `unknown`."""
    try:
        return metadata.version("tandem-serve")
    except metadata.PackageNotFoundError:
        return "unknown"
