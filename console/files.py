"""Serves the files of the web console (decision 0047).

The address of each file contains a checksum of all files. So a browser keeps a file for ever, and
a new version of the server never mixes with old files.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kernel.requests_and_replies import Reply, Request, Route, read_query
from tuff.protocol import operations
from tuff.protocol.errors import NotFoundError
from tuff.protocol.json_bodies import shown

STATIC = Path(__file__).parent / "static"
PAGE = "index.html"
VERSION_MARK = b"{version}"  # in the page: stands for the version of the files

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PAGE_TYPE = _TYPES[".html"]
# Nothing inline, nothing from elsewhere, and no page of another site shows this one in a frame.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)


class Files(NamedTuple):
    """All files of the console, by name, and their version."""

    version: str
    by_name: dict[str, bytes]


def routes() -> list[Route]:
    """The page of the console, and the files that it loads."""

    async def page(request: Request) -> Reply:
        read_query(request.query, parameters=())
        found = files()
        body = found.by_name[PAGE].replace(VERSION_MARK, found.version.encode())
        return Reply(200, _PAGE_TYPE, body, (*_SAFE, ("Cache-Control", "no-cache")))

    async def file(request: Request) -> Reply:
        read_query(request.query, parameters=())
        found, name = files(), request.parameters["file"]
        if request.parameters["version"] != found.version or name not in found.by_name:
            raise NotFoundError(
                f"the console of this server has no file {shown(name)} of that version; open "
                "/console again"
            )
        keep = ("Cache-Control", "public, max-age=31536000, immutable")
        return Reply(200, _TYPES[Path(name).suffix], found.by_name[name], (*_SAFE, keep))

    async def redirect(request: Request) -> Reply:
        read_query(request.query, parameters=())
        return Reply(308, headers=(("Location", "/console"),))

    return [
        Route(operations.GET_CONSOLE, page),
        Route(operations.GET_CONSOLE_REDIRECT, redirect),
        Route(operations.GET_CONSOLE_FILE, file),
    ]


@cache
def files() -> Files:
    """The files. The first call reads them, some hundred KB; a server without a console in use
    never does."""
    by_name = {
        each.name: each.read_bytes() for each in sorted(STATIC.iterdir()) if each.suffix in _TYPES
    }
    digest = hashlib.sha256()
    for name, content in by_name.items():
        digest.update(b"%b\0%d\0%b" % (name.encode(), len(content), content))
    return Files(digest.hexdigest()[:16], by_name)
