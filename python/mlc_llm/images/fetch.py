"""Fetches an image from a host on the internet, and never from a machine inside this network.

A name is resolved once, every address that it has must be public, and the connection goes to the
address that was checked: a name that changes its address in between gains nothing. A redirect is
not followed.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator

from mlc_llm.errors import InvalidField, one_line
from mlc_llm.images.decoder import ImageFile, ImageLimits
from mlc_llm.images.lookup import addresses_of
from mlc_llm.record import record

_log = logging.getLogger(__name__)

CHUNK = 2**16
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@record()
class Place:
    """An address of an image, in its parts."""

    url: str
    is_tls: bool
    host: str
    port: int
    target: str
    """The path and the query."""


def fetched(place: Place, limits: ImageLimits, field: str) -> ImageFile:
    """The bytes, and the type that the host says. Raises InvalidField."""
    end = time.monotonic() + limits.seconds
    try:
        with _connected(place, _checked_address(place, field, end), end) as connection:
            connection.request("GET", place.target, headers={"Accept": "image/*"})
            with connection.getresponse() as answer:
                found = _answer(answer, place, limits, field)
        if time.monotonic() >= end:
            raise TimeoutError
        return found
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, InvalidField):
            raise
        _log.debug("%s: %s: %r", field, type(error).__name__, one_line(error))
        late = isinstance(error, TimeoutError) or time.monotonic() >= end
        words = f"more than {limits.seconds:.3g} seconds" if late else _words(error)
        raise InvalidField(field, place.url, f"the host did not send it: {words}") from None


def _words(error: Exception) -> str:
    """Fixed words. The system's and the libraries' own ones are for the log alone."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its name is not known"
    if isinstance(error, ssl.SSLError):
        is_name = isinstance(error, ssl.SSLCertVerificationError)
        return "its certificate is not trusted here" if is_name else "TLS with it failed"
    if isinstance(error, http.client.IncompleteRead):
        return "its answer ended too early"
    if isinstance(error, http.client.HTTPException | ValueError):
        return "its answer is not HTTP"
    return "it cannot be reached, or broke off"


def _checked_address(place: Place, field: str, end: float) -> str:
    """One of the host's addresses. All must be public."""
    addresses = addresses_of(place.host, place.port, end)
    inside = [one for one in addresses if not is_public(one)]
    if inside:
        words = "the host is inside a network, and images come from public addresses only"
        raise InvalidField(field, place.url, words)
    return addresses[0]


def is_public(address: str) -> bool:
    """No machine of this network, of this host or of a group. An IPv4 address inside an IPv6 one
    counts itself."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = _inner(ip) or ip
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def _inner(ip: Address) -> Address | None:
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    teredo = ip.teredo
    return ip.ipv4_mapped or ip.sixtofour or (teredo[1] if teredo is not None else None)


@contextlib.contextmanager
def _connected(place: Place, address: str, end: float) -> Iterator[http.client.HTTPConnection]:
    """A connection that is cut at the end, also while the host sends a byte now and then."""
    kind = http.client.HTTPSConnection if place.is_tls else http.client.HTTPConnection
    with (
        socket.create_connection((address, place.port), _left(end)) as plain,
        plain.dup() as second,  # TLS takes the first one away
    ):
        timer = threading.Timer(_left(end), _cut, [second])
        timer.daemon = True
        timer.start()
        connection = kind(place.host, place.port)
        try:
            connection.sock = _secured(plain, place.host) if place.is_tls else plain
            yield connection
        finally:
            timer.cancel()
            connection.close()


def _secured(plain: socket.socket, host: str) -> ssl.SSLSocket:
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


def _answer(
    answer: http.client.HTTPResponse, place: Place, limits: ImageLimits, field: str
) -> ImageFile:
    if answer.status != 200:
        words = "redirects are not followed" if 300 <= answer.status < 400 else "200 is wanted"
        raise InvalidField(field, place.url, f"the host answered {answer.status}; {words}")
    data = bytearray()
    while part := answer.read(CHUNK):
        data += part
        if len(data) > limits.max_bytes:
            words = f"an image has {limits.max_bytes} bytes at most"
            raise InvalidField(field, place.url, words)
    if answer.length:
        raise http.client.IncompleteRead(bytes(data[:0]), answer.length)
    kind = answer.headers.get_content_type() if "Content-Type" in answer.headers else None
    return ImageFile(bytes(data), kind)
