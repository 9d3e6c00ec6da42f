"""GET /: a page to chat with the model and to watch the server, from files in `static`.

No build step and nothing from elsewhere; the policy below makes the browser hold us to that. The
page itself is open to all and knows nothing: what it shows it asks the API for, like any client.
"""

from hashlib import sha256
from pathlib import Path

from aiohttp import web

FOLDER = Path(__file__).with_name("static")
PREFIX = "/static/"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_routes(app: web.Application) -> None:
    """Add the page and each of its files, read once."""
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in TYPES:
            route = "/" if path.name == "index.html" else PREFIX + path.name
            app.router.add_get(route, _File(path).serve)


def is_page(path: str) -> bool:
    """Return whether a path is the page's, which needs no key, and not the API's."""
    return path == "/" or path.startswith(PREFIX)


class _File:
    """Answers with one file; a browser that has it already is told so."""

    def __init__(self, path: Path) -> None:
        self._body = path.read_bytes()
        self._type = TYPES[path.suffix]
        self._tag = sha256(self._body).hexdigest()[:16]

    async def serve(self, http: web.Request) -> web.Response:
        """Serve it."""
        known = any(tag.value == self._tag for tag in http.if_none_match or ())
        response = (
            web.Response(status=304, headers=HEADERS)
            if known
            else web.Response(
                body=self._body, content_type=self._type, charset="utf-8", headers=HEADERS
            )
        )
        response.etag = self._tag
        return response
