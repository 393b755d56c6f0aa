"""The chat page: files of this package, and nothing else. They are open to everybody: a page has no
key until its user gives one, and its calls need it like any other."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent.parent / "page"
INDEX = "index.html"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # Nothing from elsewhere, no inline script or style, no frame, and no text that becomes HTML.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def page_paths() -> tuple[str, ...]:
    """The path of each file; `/` is the page itself."""
    names = sorted(one.name for one in FOLDER.iterdir() if one.suffix in KINDS)
    return ("/", *(f"/page/{name}" for name in names if name != INDEX))


PAGE_PATHS = page_paths()


class PageFile(NamedTuple):
    """The bytes of one file, and the headers of its answer."""

    data: bytes
    headers: dict[str, str]


@cache
def page_file(path: str) -> PageFile:
    """path: one of `PAGE_PATHS`."""
    file = FOLDER / (path.rpartition("/")[2] or INDEX)
    data = file.read_bytes()
    own = {"content-type": KINDS[file.suffix], "etag": f'"{sha256(data).hexdigest()[:32]}"'}
    return PageFile(data, {**HEADERS, **own})


async def page(request: Request) -> Response:
    """One file of the page; 304 if the browser has it."""
    data, headers = page_file(request.url.path)
    if headers["etag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers)
