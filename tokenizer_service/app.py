"""The HTTP application: routes, request ids, limits of a request, and errors as JSON."""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from protocol.ids import new_id
from tokenizer_service import about, activity, page
from tokenizer_service.gateway import Gateway, Prompt
from tokenizer_service.http import GATEWAY, answer, read
from tokenizer_service.limits import MAX_CLIENT_ID_CHARS
from tokenizer_service.openai import chat, completions, serve, tokenize
from tokenizer_service.openai.errors import ApiError, internal
from tokenizer_service.openai.format import Answer, ChatFormat, CompletionFormat, Format
from tokenizer_service.openai.schema import ChatRequest, CompletionRequest, Request
from tokenizer_service.origins import Origins, preflight
from tokenizer_service.tracing import CHAT, TEXT

log = logging.getLogger(__name__)

REQUEST_ID = web.RequestKey("request_id", str)
"""Ours, unique."""
LABEL = web.RequestKey("label", str)
"""The client's word for its request, or ours: only for headers and logs."""

CLIENT_ID = re.compile(rf"[\w.:\-]{{1,{MAX_CLIENT_ID_CHARS}}}", re.ASCII)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build(gateway: Gateway) -> web.Application:
    """Return the application of a gateway."""
    origins = Origins(gateway.settings.allowed_origins)
    app = web.Application(
        client_max_size=gateway.settings.max_body_bytes,
        middlewares=[_label, preflight(origins), _errors],
    )
    app[GATEWAY] = gateway
    app.on_response_prepare.append(_echo_label)
    app.on_response_prepare.append(origins.say)
    app.router.add_post("/v1/chat/completions", _chat)
    app.router.add_post("/v1/completions", _completions)
    for prefix in ("", "/v1"):
        app.router.add_post(f"{prefix}/tokenize", _tokenize)
        app.router.add_post(f"{prefix}/detokenize", _detokenize)
    about.add_routes(app)
    activity.add_routes(app)
    page.add_routes(app)
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
    resource = http.match_info.route.resource
    path = resource.canonical if resource is not None else "other"
    http.app[GATEWAY].metrics.response(path, response.status)


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
        request = await read(http, ChatRequest)
        gateway.router.check_name(request.model)
        prompts = [chat.prompt(request, gateway.assets)]
        return await _generate(http, request, prompts, ChatFormat(_about(http, request, prompts)))


async def _completions(http: web.Request) -> web.StreamResponse:
    gateway = http.app[GATEWAY]
    with gateway.serving():
        request = await read(http, CompletionRequest)
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
    operation = CHAT if isinstance(request, ChatRequest) else TEXT
    with gateway.tracing.request(operation, http[REQUEST_ID], request, http.headers) as traced:
        generation = await gateway.generation(http[REQUEST_ID], request, prompts)
        traced.generation = generation
        if not request.stream:
            return await serve.whole(generation, form)
        return await serve.stream(
            http, generation, form, gateway.settings, include_usage=request.include_usage
        )


# --- tokens ---


async def _tokenize(http: web.Request) -> web.Response:
    gateway = http.app[GATEWAY]
    request = await read(http, tokenize.TokenizeRequest)
    gateway.router.check_name(request.model or gateway.router.served[0])
    known = gateway.router.known_model()
    length = known.max_model_len if known else None
    return answer(
        await gateway.pool.run(lambda: tokenize.tokenize(request, gateway.assets, length))
    )


async def _detokenize(http: web.Request) -> web.Response:
    gateway = http.app[GATEWAY]
    request = await read(http, tokenize.DetokenizeRequest)
    gateway.router.check_name(request.model or gateway.router.served[0])
    return answer(await gateway.pool.run(lambda: tokenize.detokenize(request, gateway.assets)))
