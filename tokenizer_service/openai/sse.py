"""Server-sent events as OpenAI frames them: `data: {json}`, blank line, and `data: [DONE]` last.

A stream that just ends is taken for a success by clients, so one that fails says so in a frame.
"""

import msgspec

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, proxies see that the connection lives."""

_encoder = msgspec.json.Encoder()


def frame(chunk: object) -> bytes:
    """Return one event. JSON escapes line breaks, so a chunk is always one line."""
    return b"data: " + _encoder.encode(chunk) + b"\n\n"
