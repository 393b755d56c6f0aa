"""Who may call the server: keys, host names and web pages are checked before anything else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mlc_llm.serve.server.errors import HTTPError, error_response
from mlc_llm.serve.server.limits.settings import LOCAL_NAMES, ServerSettings
from mlc_llm.serve.server.limits.tenants import ANYBODY, TENANT, Tenant
from mlc_llm.serve.server.notes.note import current_note

MAX_HEADERS = 200
KEY_HEADERS = ("x-api-key", "api-key")


class Guard:
    """ASGI middleware. It answers 401 without a key, and 403 for a foreign host or web page.

    The host is checked against DNS rebinding: a web page can make a browser call this machine under
    a name of the page's own. Probes of HTTP/1.0, such as HAProxy's, name none; browsers always do.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, open_paths: Collection[str]) -> None:
        """open_paths: what is answered without a key."""
        self._app, self._settings, self._open_paths = app, settings, open_paths
        self._keys = settings.keys
        self._hosts = {*LOCAL_NAMES, settings.host.lower(), *map(str.lower, settings.allowed_hosts)}
        self._origins = set(settings.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                scope[TENANT] = self._checked(scope["path"], headers)
            except HTTPError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _checked(self, path: str, headers: Headers) -> Tenant:
        """Who calls. Raises `HTTPError`."""
        if len(headers.raw) > MAX_HEADERS or _size(headers) > self._settings.limits.header_bytes:
            words = f"at most {MAX_HEADERS} headers, of {self._settings.limits.header_bytes} bytes"
            raise HTTPError(431, words, code="headers_too_large", headers={"connection": "close"})
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy that believes the other one would take the rest for a request of its own.
            words = "a request has either Transfer-Encoding or Content-Length"
            raise HTTPError(400, words, headers={"connection": "close"})
        host = headers.get("host")
        if self._settings.unix_socket is None and not self._is_known_host(host):
            words = f"this server is not known as {host!r:.200}; --allow-host adds a name"
            raise HTTPError(403, words, kind="permission_error", code="unknown_host")
        origin = headers.get("origin")
        if origin is not None and not self._is_known_origin(origin, host or ""):
            words = f"pages of {origin[:200]!r} may not call this server; --cors-origin adds one"
            raise HTTPError(403, words, kind="permission_error", code="unknown_origin")
        if not self._keys:
            return ANYBODY
        tenant = self._keys.find(_given_key(headers))
        if tenant is None and path not in self._open_paths:
            raise HTTPError(
                401,
                "a valid key is needed: Authorization: Bearer KEY",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if tenant is not None:
            note = current_note()
            note.key, note.key_name = self._keys.number_of(tenant), tenant.name or None
        return tenant or ANYBODY

    def _is_known_host(self, host: str | None) -> bool:
        if host is None or "*" in self._hosts or (not self._settings.is_local and self._keys):
            return True  # a key keeps foreign pages out as well
        return _name_of(host) in self._hosts

    def _is_known_origin(self, origin: str, host: str) -> bool:
        if self._origins & {"*", origin}:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:  # such as http://[
            return False
        return parts.netloc.lower() == host.lower() and bool(host)


def _given_key(headers: Mapping[str, str]) -> bytes:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip().encode("latin-1")
    for name in KEY_HEADERS:
        if headers.get(name):
            return headers[name].strip().encode("latin-1")
    return b""


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value) for name, value in headers.raw)


def _name_of(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
