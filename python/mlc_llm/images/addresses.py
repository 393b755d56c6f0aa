"""Where the bytes of an image come from: `data:` addresses, and hosts that the user allowed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from mlc_llm.errors import InvalidField
from mlc_llm.images.decoder import ImageFile, ImageLimits
from mlc_llm.images.fetch import Place, fetched

PORTS = {"http": 80, "https": 443}
SPACE = b"\t\n\f\r "
NOT_ALLOWED = (
    "images come as data: addresses, such as data:image/png;base64,...; "
    "the server allows other hosts with --allow-image-hosts, ImageData.from_url with allow_hosts"
)


def image_file(
    url: str,
    hosts: Sequence[str] = (),
    limits: ImageLimits | None = None,
    field: str = "image_url.url",
) -> ImageFile:
    """The bytes at an address. hosts: names, or names with a port, that may be asked by HTTP.

    Raises `InvalidField` for any other address, for wrong base64, and if a host does not answer.
    """
    limits = limits or ImageLimits()
    if url[:5].lower() == "data:":
        return _of_data(url, limits, field)
    place = _place(url, hosts, field)
    return fetched(place, limits, field)


def _of_data(url: str, limits: ImageLimits, field: str) -> ImageFile:
    """RFC 2397."""
    head, comma, body = url[5:].partition(",")
    if not comma:
        raise InvalidField(field, url, "a data: address has a comma before its bytes")
    media_type, *parameters = (part.strip().lower() for part in head.split(";"))
    if len(body) > 3 * limits.max_bytes:  # each byte has at most three characters
        words = f"an image has {limits.max_bytes} bytes at most"
        raise InvalidField(field, f"{len(body)} characters", words)
    data = unquote_to_bytes(body)
    if "base64" in parameters:
        data = _of_base64(data, url, field)
    return ImageFile(data, media_type or None)


def _of_base64(text: bytes, url: str, field: str) -> bytes:
    """With or without `=` at the end. White space is passed over, as in browsers: the `base64` of
    a shell, and of mails, breaks lines."""
    text = text.translate(None, SPACE)
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidField(field, url, "the bytes behind the comma are not base64") from None


def _place(url: str, hosts: Sequence[str], field: str) -> Place:
    """Raises InvalidField for an address that is not one of an allowed host."""
    parts = _split(url, field)
    if parts.scheme not in PORTS or not hosts:
        raise InvalidField(field, url, NOT_ALLOWED)
    host, port = (parts.hostname or "").rstrip("."), parts.port or PORTS[parts.scheme]
    allowed = {one.lower() for one in hosts}
    is_usual = port == PORTS[parts.scheme]
    if f"{host}:{port}" not in allowed and not (is_usual and host in allowed):
        raise InvalidField(field, url, f"hosts allowed here: {', '.join(sorted(allowed))}")
    if parts.username is not None or parts.password is not None:
        raise InvalidField(field, url, "an address without a name and password")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not (target.isascii() and target.isprintable() and " " not in target):
        raise InvalidField(field, url, "characters outside ASCII, and spaces, are written as %XX")
    return Place(url, parts.scheme == "https", host, port, target)


def _split(url: str, field: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError if it is no number
    except ValueError as error:
        raise InvalidField(field, url, f"an address of an image; {error}") from None
    return parts
