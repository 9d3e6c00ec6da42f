"""Every bound on what a client may send, in one table.

Most ways of killing a server with one request are a missing upper bound; a limit that is not here
does not exist. Operators change the ones that depend on their deployment in `settings`.
"""

MAX_JSON_DEPTH = 32
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 4096
MAX_STOPS = 16
MAX_STOP_CHARS = 64
MAX_SLO_MS = 3_600_000
"""Of an objective: an hour."""
MAX_CHOICES = 8
"""Of one prompt (n)."""
MAX_PROMPTS = 64
"""In one request."""
MAX_CLIENT_ID_CHARS = 64
"""Of an X-Request-Id; a longer or odd one is replaced, not refused."""
MAX_NAME_CHARS = 256
"""Of a model's name or a participant's."""

INLINE_BODY_BYTES = 64 << 10
"""Larger bodies are parsed off the event loop."""
NORMALIZATION_SLACK = 4
"""A normalizer may shrink text at most this much before it is tokenized."""

MAX_TEMPLATE_STEPS = 1_000_000
"""Lines that one rendering of a chat template may execute."""
MAX_TEMPLATE_PRODUCT = 10_000_000
"""Items in a repeated string or list, and bits in a power, inside a chat template."""

MAX_ATTEMPTS = 8
"""At one request, over restarts of the worker; a submit that was lost on the way is none."""

MAX_WATCHERS = 32
"""Clients that follow the server's activity at the same time."""
