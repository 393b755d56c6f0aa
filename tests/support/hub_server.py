"""A small server that speaks huggingface.co's protocol, with the faults of networks."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Asked:
    """A request for bytes of a file."""

    name: str
    range: str | None
    token: str | None


@dataclass
class Hub:
    """One repository, `user/repo`, and how the server behaves."""

    files: dict[str, bytes]
    url: str = ""
    commit: str = COMMIT
    asked: list[Asked] = field(default_factory=list)
    lists: int = 0
    cuts: list[int] = field(default_factory=list)
    """Each answer with bytes takes one number: after so many bytes it breaks off."""
    knows_range: bool = True
    elsewhere: str = ""
    """The address of another server, to which files are redirected."""
    moved: bool = False
    """The repository has a new name, to which the old one is redirected."""
    refuses: tuple[int, str, str] | None = None
    """Status, X-Error-Code and X-Error-Message of all files."""
    refuses_list: tuple[int, str, str] | None = None
    busy: int = 0
    """So many requests for bytes are answered 503 first."""
    sends: dict[str, bytes] = field(default_factory=dict)
    """Other bytes of a file than its list says."""
    states_lfs: bool = True
    holds: threading.Event | None = None
    """Bytes after the first half of an answer wait for this."""
    list_text: bytes | None = None

    def listing(self) -> bytes:
        if self.list_text is not None:
            return self.list_text
        siblings = [_entry(name, data, self.states_lfs) for name, data in self.files.items()]
        return json.dumps({"id": "user/repo", "sha": self.commit, "siblings": siblings}).encode()

    @property
    def names(self) -> set[str]:
        return {one.name for one in self.asked}


def _entry(name: str, data: bytes, lfs: bool) -> dict[str, object]:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": blob}
    if lfs and not name.endswith((".json", ".txt", ".jinja")):
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    return entry


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        path, hub = self.path.partition("?")[0], self.hub
        if hub.moved and "/new/" not in path:
            self._redirect(self.path.replace("/user/", "/new/"))
            return
        path = path.replace("/new/", "/user/")
        if path == "/api/models/user/repo":
            hub.lists += 1
            self._list()
        elif found := re.fullmatch(rf"/user/repo/resolve/{hub.commit}/(.+)", path):
            self._file(found[1])
        else:
            self._refuse(404, "RepoNotFound", "Repository not found")

    def _list(self) -> None:
        if self.hub.refuses_list is not None:
            self._refuse(*self.hub.refuses_list)
            return
        data = self.hub.listing()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _redirect(self, place: str) -> None:
        self.send_response(307)
        self.send_header("Location", place)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, name: str) -> None:
        hub = self.hub
        hub.asked.append(Asked(name, self.headers["Range"], self.headers["Authorization"]))
        if hub.busy:
            hub.busy -= 1
            self._refuse(503, "", "")
        elif hub.refuses is not None:
            self._refuse(*hub.refuses)
        elif hub.elsewhere:
            self._redirect(hub.elsewhere + self.path)
        else:
            self._bytes(hub.sends.get(name, hub.files[name]))

    def _bytes(self, data: bytes) -> None:
        stated = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
        start, end = 0, len(data)
        if stated and self.hub.knows_range:
            start, end = int(stated[1]), min(end, int(stated[2]) + 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        cut = self.hub.cuts.pop(0) if self.hub.cuts else end - start
        half = (start + end) // 2
        try:
            self.wfile.write(data[start:half][:cut])
            self.wfile.flush()
            if self.hub.holds is not None:
                self.hub.holds.wait(30)
            self.wfile.write(data[half:end][: max(0, cut - (half - start))])
        except OSError:  # the client has gone
            self.close_connection = True
        if cut < end - start:
            self.close_connection = True


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve a repository on a free port of this machine."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        if hub.holds is not None:
            hub.holds.set()
        server.shutdown()
        server.server_close()
        thread.join()
