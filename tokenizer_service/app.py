"""The HTTP application: routes, request ids, limits of a request, and errors as JSON."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import metadata
from typing import TypeVar

import msgspec
from aiohttp import web

from protocol import PROTOCOL_VERSION
from protocol.ids import new_id
from tokenizer_service.gateway import Gateway, Prompt
from tokenizer_service.limits import INLINE_BODY_BYTES, MAX_CLIENT_ID_CHARS
from tokenizer_service.openai import chat, completions, models, serve
from tokenizer_service.openai.errors import RETRY_AFTER_S, ApiError, internal
from tokenizer_service.openai.format import Answer, ChatFormat, CompletionFormat, Format
from tokenizer_service.openai.logprobs import Json
from tokenizer_service.openai.schema import ChatRequest, CompletionRequest, Request, parse

log = logging.getLogger(__name__)

GATEWAY = web.AppKey("gateway", Gateway)
STARTED = web.AppKey("started", int)

REQUEST_ID = web.RequestKey("request_id", str)
"""Ours, unique."""
LABEL = web.RequestKey("label", str)
"""The client's word for its request, or ours: only for headers and logs."""

CLIENT_ID = re.compile(rf"[\w.:\-]{{1,{MAX_CLIENT_ID_CHARS}}}", re.ASCII)

R = TypeVar("R", bound=Request)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build(gateway: Gateway) -> web.Application:
    """Return the application of a gateway."""
    app = web.Application(
        client_max_size=gateway.settings.max_body_bytes, middlewares=[_label, _errors]
    )
    app[GATEWAY] = gateway
    app[STARTED] = int(time.time())
    app.on_response_prepare.append(_echo_label)
    app.router.add_post("/v1/chat/completions", _chat)
    app.router.add_post("/v1/completions", _completions)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/v1/models/{model:.+}", _model)
    app.router.add_get("/health", _ready)
    app.router.add_get("/health/ready", _ready)
    app.router.add_get("/health/live", _live)
    app.router.add_get("/version", _version)
    return app


# --- around every request ---


@web.middleware
async def _label(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Name the request: ours inside, the client's word for it only in headers and logs."""
    given = request.headers.get("X-Request-Id", "")
    request[REQUEST_ID] = new_id()
    request[LABEL] = given if CLIENT_ID.fullmatch(given) else request[REQUEST_ID]
    return await handler(request)


async def _echo_label(http: web.Request, response: web.StreamResponse) -> None:
    response.headers["X-Request-Id"] = http.get(LABEL, "")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error in OpenAI's form."""
    try:
        return await handler(request)
    except ApiError as error:
        return _answer(error)
    except web.HTTPException as error:
        return _answer(_from_http(request, error))
    except ConnectionError:
        raise  # the client has gone: there is nobody to answer
    except Exception:
        log.exception("request failed label=%s", request.get(LABEL))
        return _answer(internal())


def _from_http(http: web.Request, error: web.HTTPException) -> ApiError:
    if error.status == 404:
        return ApiError(404, "not_found_error", f"no such path: {http.path}", code="not_found")
    if error.status == 413:
        limit = http.app[GATEWAY].settings.max_body_bytes
        message = f"the body is larger than {limit} bytes"
        return ApiError(413, "invalid_request_error", message, code="body_too_large", close=True)
    return ApiError(error.status, "invalid_request_error", f"{http.method}: {error.reason}")


def _answer(error: ApiError) -> web.Response:
    response = web.Response(
        status=error.status, body=error.encode(), content_type="application/json"
    )
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    if error.close:
        response.force_close()
    return response


# --- completions ---


async def _chat(http: web.Request) -> web.StreamResponse:
    gateway = http.app[GATEWAY]
    with gateway.serving():
        request = await _read(http, ChatRequest)
        gateway.router.check_name(request.model)
        prompts = [chat.prompt(request, gateway.assets)]
        return await _generate(http, request, prompts, ChatFormat(_about(http, request, prompts)))


async def _completions(http: web.Request) -> web.StreamResponse:
    gateway = http.app[GATEWAY]
    with gateway.serving():
        request = await _read(http, CompletionRequest)
        gateway.router.check_name(request.model)
        prompts = completions.prompts(request, gateway.assets)
        echoes = completions.echoes(request, gateway.assets.tokenizer)
        form = CompletionFormat(_about(http, request, prompts), echoes)
        return await _generate(http, request, prompts, form)


def _about(http: web.Request, request: Request, prompts: Sequence[Prompt]) -> Answer:
    return Answer(
        request=http[REQUEST_ID],
        model=request.model,
        created=int(time.time()),
        streams_usage=request.include_usage,
        choices=len(prompts) * request.choices,
    )


async def _generate(
    http: web.Request, request: Request, prompts: Sequence[Prompt], form: Format
) -> web.StreamResponse:
    gateway = http.app[GATEWAY]
    generation = await gateway.generation(http[REQUEST_ID], request, prompts)
    if not request.stream:
        return await serve.whole(generation, form)
    return await serve.stream(
        http, generation, form, gateway.settings, include_usage=request.include_usage
    )


async def _read(http: web.Request, kind: type[R]) -> R:
    """Return a request's fields. Raises ApiError."""
    _check_headers(http)
    gateway = http.app[GATEWAY]
    limit_s = gateway.settings.body_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            data = await http.read()
    except TimeoutError:
        message = f"the body did not arrive in {limit_s:g} s"
        raise ApiError(408, "invalid_request_error", message, close=True) from None
    if len(data) <= INLINE_BODY_BYTES:
        return parse(data, kind)
    return await gateway.pool.run(lambda: parse(data, kind))


def _check_headers(http: web.Request) -> None:
    """Refuse packed bodies, and types that a web page may send to another origin unasked."""
    if http.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ApiError(
            415, "invalid_request_error", "Content-Encoding is not supported", close=True
        )
    if http.content_type != "application/json":
        message = f"Content-Type is {http.content_type!r}; application/json is needed"
        raise ApiError(415, "invalid_request_error", message, close=True)


# --- about the server ---


async def _models(http: web.Request) -> web.Response:
    return _json(models.list_all(http.app[GATEWAY].router, http.app[STARTED]))


async def _model(http: web.Request) -> web.Response:
    name = http.match_info["model"]
    return _json(models.describe(name, http.app[GATEWAY].router, http.app[STARTED]))


async def _live(http: web.Request) -> web.Response:
    return _json({"status": "live"})


async def _ready(http: web.Request) -> web.Response:
    reason = http.app[GATEWAY].not_ready()
    if reason is None:
        return _json({"status": "ready"})
    response = _json({"status": "not ready", "reason": reason}, status=503)
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


async def _version(http: web.Request) -> web.Response:
    return _json({"version": _package_version(), "protocol": PROTOCOL_VERSION})


def _package_version() -> str:
    try:
        return metadata.version("tandem-serve")
    except metadata.PackageNotFoundError:
        return "unknown"


def _json(value: Json, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json"
    )
