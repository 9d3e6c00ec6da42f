"""What all HTTP handlers share: where the gateway is, reading a body, answering in JSON."""

import asyncio
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from tokenizer_service.gateway import Gateway
from tokenizer_service.limits import INLINE_BODY_BYTES
from tokenizer_service.openai.errors import ApiError
from tokenizer_service.openai.logprobs import Json
from tokenizer_service.openai.schema import parse

GATEWAY = web.AppKey("gateway", Gateway)

S = TypeVar("S", bound=Struct)


async def read(http: web.Request, kind: type[S]) -> S:
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


def answer(value: Json, status: int = 200) -> web.Response:
    """Return a response with a JSON body."""
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json"
    )
