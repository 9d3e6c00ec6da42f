"""Writes one answer to one HTTP client: whole, or as a stream that always says how it ended."""

import asyncio
import logging
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from tokenizer_service.generation import Generation
from tokenizer_service.openai import sse
from tokenizer_service.openai.errors import ApiError, internal
from tokenizer_service.openai.format import Format
from tokenizer_service.settings import GatewaySettings

log = logging.getLogger(__name__)


async def whole(generation: Generation, form: Format) -> web.StreamResponse:
    """Answer when the output is complete. Raises ApiError."""
    async with generation:
        await generation.admitted()
        outputs = await generation.whole()
    body = msgspec.json.encode(form.whole(outputs, generation.usage))
    return web.Response(body=body, content_type="application/json")


async def stream(
    http: web.Request,
    generation: Generation,
    form: Format,
    settings: GatewaySettings,
    *,
    include_usage: bool,
) -> web.StreamResponse:
    """Answer in events. Raises ApiError before the first byte only; later it is an event."""
    async with generation:
        await generation.admitted()
        response = web.StreamResponse(headers=sse.HEADERS)
        await response.prepare(http)
        try:
            async for data in _frames(generation, form, settings.keep_alive_s, include_usage):
                async with asyncio.timeout(settings.write_stall_s):
                    await response.write(data)
        except TimeoutError:
            log.info("client does not read for %g s: dropped", settings.write_stall_s)
            if http.transport is not None:
                http.transport.abort()
            return response
    await response.write_eof()
    return response


async def _frames(
    generation: Generation, form: Format, keep_alive_s: float, include_usage: bool
) -> AsyncIterator[bytes]:
    """Yield what a stream consists of; `[DONE]` is last also after an error."""
    try:
        async for chunk in _events(generation, form, keep_alive_s, include_usage):
            yield chunk
    except ApiError as error:
        yield sse.frame(error.body())
    except Exception:
        log.exception("stream failed")
        yield sse.frame(internal().body())
    yield sse.DONE


async def _events(
    generation: Generation, form: Format, keep_alive_s: float, include_usage: bool
) -> AsyncIterator[bytes]:
    for chunk in form.opening():
        yield sse.frame(chunk)
    while not generation.over:
        piece = await generation.piece(keep_alive_s)
        if piece is None:
            yield sse.KEEP_ALIVE
            continue
        if piece.text or piece.tokens:
            yield sse.frame(form.piece(piece))
        if piece.end is not None:
            yield sse.frame(form.closing(piece.index, piece.end))
    if include_usage:
        yield sse.frame(form.usage(generation.usage))
