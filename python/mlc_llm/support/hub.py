"""The protocol of huggingface.co: the list of a repository's files, and their bytes.

`HF_ENDPOINT` names another server of the same protocol. The token is the one that `hf auth login`
keeps, or `HF_TOKEN`. It is sent to the server itself only, never to one that it redirects to.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from threading import Thread
from typing import IO, TypeAlias

from mlc_llm.record import record

LISTING_S = 7.0
"""Seconds to wait for the list of files. With all imports, a user waits less than ten."""
STALL_S = 10.0
"""Seconds to wait for the next bytes of a file."""
_MOST_LISTED = 64 << 20
_MOST_READ = 1 << 18
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOKEN = re.compile(r"[!-~]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ADVICE = "check the network and the proxy (HTTPS_PROXY), or name a model on this machine"
_LOG_IN = "log in (hf auth login, or set HF_TOKEN)"

Answer: TypeAlias = http.client.HTTPResponse


class HubError(Exception):
    """The server cannot be reached, refuses, or says something wrong. The text is one line."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing
        """Whether another try may succeed."""


@record()
class RemoteFile:
    """A file of a repository. hash: hexadecimal SHA-256 (64 letters), or Git's SHA-1 (40)."""

    name: str
    size: int
    hash: str


@record()
class Listing:
    """The files of a repository in one commit, by name."""

    repository: str
    commit: str
    files: dict[str, RemoteFile]


def endpoint() -> str:
    """The address of the server. Raises HubError if HF_ENDPOINT is no such address."""
    chosen = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    try:
        scheme = urllib.parse.urlsplit(chosen).scheme
    except ValueError as error:
        raise HubError(f"HF_ENDPOINT = {chosen!r} is no address: {error}") from None
    if scheme not in ("http", "https"):
        raise HubError(f"HF_ENDPOINT = {chosen!r} should begin with https:// or http://")
    return chosen


def host_of(url: str) -> str:
    """The server's name in an address."""
    return urllib.parse.urlsplit(url).netloc.rpartition("@")[2]


def list_files(repository: str) -> Listing:
    """All files of `repository` (user/name). One request, no retries, at most LISTING_S seconds.

    Raises HubError.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise HubError("HF_HUB_OFFLINE is set")
    url = f"{endpoint()}/api/models/{urllib.parse.quote(repository)}?blobs=true"
    found: list[bytes] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            with _opened(url, {}, LISTING_S) as answer:
                found.append(_read(answer, url))
        except BaseException as error:
            errors.append(error)

    # Looking up the name of a host has no time limit, so it runs on a thread that may be left.
    thread = Thread(target=ask, name="hub-listing", daemon=True)
    thread.start()
    thread.join(LISTING_S)
    if errors:
        raise errors[0]
    if not found:
        raise HubError(f"{host_of(url)} gives no answer within {LISTING_S:g} s; {_ADVICE}")
    return _listing(repository, found[0], host_of(url))


def _read(answer: Answer, url: str) -> bytes:
    try:
        data = answer.read(_MOST_LISTED + 1)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error
    if len(data) > _MOST_LISTED:
        raise HubError(f"the list of files of {host_of(url)} is longer than {_MOST_LISTED} bytes")
    return data


def _listing(repository: str, data: bytes, host: str) -> Listing:
    try:
        said = json.loads(data)
        entries = {one["rfilename"]: one for one in said["siblings"]}
        if not all(isinstance(name, str) for name in entries):
            raise ValueError("a name is no text")
        if not _COMMIT.fullmatch(said["sha"]):
            raise ValueError("sha is no commit")
        files = {name: _remote(name, one) for name, one in entries.items() if "size" in one}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HubError(f"{host} sends no list of files that can be read ({error})") from None
    return Listing(repository, said["sha"], files)


def _remote(name: str, entry: dict[str, object]) -> RemoteFile:
    lfs = entry.get("lfs")
    stated = lfs.get("sha256") if isinstance(lfs, dict) else entry.get("blobId")
    kind = _SHA256 if isinstance(lfs, dict) else _COMMIT
    size = lfs.get("size") if isinstance(lfs, dict) else entry["size"]
    if not isinstance(stated, str) or not kind.fullmatch(stated):
        raise ValueError(f"{name} has no hash")
    if not isinstance(size, int) or not 0 <= size < 2**50:
        raise ValueError(f"{name} has the size {str(size)[:40]}")
    return RemoteFile(name, size, stated)


def file_bytes(listing: Listing, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
    """Bytes `start` to `end` of a file, as they arrive. Raises HubError, also for fewer bytes."""
    place = urllib.parse.quote(f"{listing.repository}/resolve/{listing.commit}/{file.name}")
    url = f"{endpoint()}/{place}"
    headers = {} if (start, end) == (0, file.size) else {"Range": f"bytes={start}-{end - 1}"}
    with _opened(url, headers, STALL_S) as answer:
        at = _first_byte(answer, file, start)
        while at < end:
            data = _some(answer, url, end - at)
            if not data:
                raise HubError(f"{host_of(answer.url)} broke off {file.name}", passing=True)
            if at + len(data) > start:
                yield data[max(0, start - at) :]
            at += len(data)


def _first_byte(answer: Answer, file: RemoteFile, start: int) -> int:
    """Where an answer begins: at `start`, or at 0 if the server does not know Range. Raises
    HubError if it is of another place or size."""
    if answer.status == 206:
        stated = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        if stated is None or int(stated[1]) != start:
            raise HubError(f"{host_of(answer.url)} sends another part of {file.name}")
        first, size = start, stated[2]
    else:
        first, size = 0, answer.headers.get("Content-Length", str(file.size))
    if size != str(file.size):
        raise HubError(
            f"{host_of(answer.url)} sends {size} bytes of {file.name}; its list says {file.size}"
        )
    return first


def _some(answer: Answer, url: str, most: int) -> bytes:
    try:
        return answer.read1(min(most, _MOST_READ))
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error


def _opened(url: str, headers: dict[str, str], timeout: float) -> Answer:
    request = urllib.request.Request(url, headers=headers)
    request.add_header("User-Agent", "mlc_llm")
    request.add_header("Accept-Encoding", "identity")
    token = _token()
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        answer: Answer = _opener().open(request, timeout=timeout)
        return answer
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(error, host_of(url)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(url, error) from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to web addresses, never from https to http. The token stays at home."""

    def redirect_request(  # noqa: PLR0917 - the library's own
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if new.scheme not in ("https", old.scheme):
            fp.close()
            raise HubError(f"{host_of(req.full_url)} redirects to {new.scheme}://{new.netloc}")
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if made is not None and token and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            made.add_unredirected_header("Authorization", token)
        return made


@cache
def _opener() -> urllib.request.OpenerDirector:
    """Obeys the proxies of the environment."""
    secure = urllib.request.HTTPSHandler(context=_certificates())
    return urllib.request.build_opener(_Redirects, secure)


def _certificates() -> ssl.SSLContext:
    """The system's certificates; those of the package certifi where the system has none."""
    context = ssl.create_default_context()
    places = ssl.get_default_verify_paths()
    spec = importlib.util.find_spec("certifi")
    none = not (places.cafile or places.capath or context.get_ca_certs())
    if none and spec is not None and spec.origin is not None:
        context.load_verify_locations(Path(spec.origin).with_name("cacert.pem"))
    return context


def _token() -> str | None:
    """The token, if there is one. Raises HubError for one that no header can have: the error of the
    HTTP library would show it."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if said := os.environ.get(name):
            return _checked_token(said, name)
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    try:
        path = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
        said = path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, RuntimeError):
        return None
    return _checked_token(said, str(path))


def _checked_token(said: str, place: str) -> str | None:
    token = said.strip()
    if not _TOKEN.fullmatch(token):
        raise HubError(f"the token in {place} has white space or other signs that no token has")
    return token or None


def _refused(error: urllib.error.HTTPError, host: str) -> HubError:
    code = error.headers.get("X-Error-Code", "")
    said = error.headers.get("X-Error-Message", "")
    if code == "GatedRepo":
        return HubError(f"its makers want you to accept their licence on {host}; then {_LOG_IN}")
    if error.code in (401, 403) and ("token" in said or "credentials" in said):
        return HubError(f"{host} refuses your token; {_LOG_IN}")
    if code == "EntryNotFound":
        return HubError(f"{host} has lost a file of its own list")
    if error.code in (401, 403, 404):
        return HubError(f"{host} has no such model; check the name; for a private one {_LOG_IN}")
    words = http.client.responses.get(error.code, "")
    passing = error.code in (408, 429) or error.code >= 500
    return HubError(f"{host} answers {error.code} {words}".rstrip(), passing=passing)


def _unreachable(url: str, error: Exception) -> HubError:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, HubError):
        return cause
    if isinstance(cause, TimeoutError):
        words = "no answer in time"
    elif isinstance(cause, ssl.SSLCertVerificationError):
        words = f"{cause.verify_message}; SSL_CERT_FILE names a file of certificates"
    else:
        words = (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__)[:200]
    return HubError(f"cannot reach {host_of(url)}: {words}; {_ADVICE}", passing=True)
