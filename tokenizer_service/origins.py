"""Which web pages a browser lets read the answers (CORS, Fetch standard 3.2). Default: none.

Separate from the application, so that no route can forget it.
"""

from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Request-Id",
    "Access-Control-Max-Age": "600",
}


class Origins:
    """The pages that are allowed."""

    def __init__(self, allowed: Sequence[str]) -> None:
        """`allowed`: such as `https://chat.example`; `*`: all of them."""
        self._allowed = frozenset(allowed)

    def allows(self, origin: str) -> bool:
        """Return whether a page of this origin may read answers."""
        return bool(origin) and not self._allowed.isdisjoint((origin, "*"))

    async def say(self, http: web.Request, response: web.StreamResponse) -> None:
        """Tell the browser, before an answer's headers are sent. Nothing when not allowed."""
        origin = http.headers.get("Origin", "")
        if self.allows(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After"
            response.headers.add("Vary", "Origin")


def preflight(origins: Origins) -> Middleware:
    """Return the middleware that answers browsers which ask before they send."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if asks and origins.allows(request.headers.get("Origin", "")):
            return web.Response(status=204, headers=PREFLIGHT)
        return await handler(request)

    return middleware
