"""The settings of a server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Literal

from mlc_llm.errors import InvalidField
from mlc_llm.record import record
from mlc_llm.serve.server.limits.tenants import Keyring

OnStall = Literal["wait", "restart", "exit"]
ON_STALL: tuple[OnStall, ...] = ("wait", "restart", "exit")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\sA-Z/]+")
_HOST_NAME = re.compile(r"\*|[^\s:/\[]+|[\da-fA-F:.]*:[\da-fA-F:.]*:[\da-fA-F:.]*")


@record()
class Limits:
    """What one client may ask of the server. Times are in seconds."""

    body_bytes: int = 32 << 20
    header_bytes: int = 64 << 10
    header_s: float = 20.0
    """A connection has so long to send the head of a request."""
    body_s: float = 60.0
    """A request has so long to send its body."""
    write_s: float = 60.0
    """The connection of a reader that takes nothing for so long is cut."""
    queue: int = 256
    """Answers that may wait, beyond those that the engine computes at a time. A request with n
    answers counts as n."""
    queue_tokens: int = 1 << 18
    """Tokens of prompts that may wait for a model."""
    per_key: int | None = None
    """Answers of one key that may wait or run. None: with several keys half of all, else all."""
    wait_s: float = 600.0
    """A request waits so long for its turn."""
    queued_prompt_bytes: int = 64 << 20
    """Bytes of the requests that wait or run."""
    held_bytes: int = 256 << 20
    """Bytes of all large requests, also of those that have not come as a whole."""
    connections: int = 1024
    """At a time; one more is closed at once."""
    keep_alive_s: float = 30.0
    ping_s: float = 15.0
    """A stream without news gets a comment so often, for proxies."""
    metrics_s: float = 5.0
    """The engine has so long to give its numbers for `/metrics`."""
    drain_s: float = 30.0
    """After SIGTERM, running answers have so long to end."""
    stall_s: float = 60.0
    """An engine with work that has done no step, and on a CPU no kernel of one, for so long is
    stalled."""


@record()
class ServerSettings:
    """Where a server listens, and whom it serves."""

    host: str = "127.0.0.1"
    port: int = 8000
    unix_socket: Path | None = None
    """Listen here instead of on a port."""
    keys: Keyring = field(default_factory=Keyring)
    """Each request needs one of them; without any, every request is served."""
    read_keys_again: Callable[[], Keyring] | None = None
    """For SIGHUP. None: the keys are in no file."""
    allow_no_key: bool = False
    """Listen to other machines without a key."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients may call this server, beside its address and local names. "*": all."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may call this server from a browser, such as https://example.org. "*": all."""
    keep_model_s: float | None = None
    """A model is closed after so many seconds without a request; None: it stays open."""
    strict_params: bool = False
    """Refuse requests with fields that have no effect."""
    any_name: bool = False
    """A request may give the model any name."""
    on_stall: OnStall = "wait"
    """What becomes of a stalled engine: wait until it moves again, open another one, or end the
    process with `STALLED`, for a supervisor that starts it again."""
    debug: bool = False
    """Serve `debug_config` in requests."""
    certificate: Path | None = None
    certificate_key: Path | None = None
    limits: Limits = Limits()

    def check(self) -> None:
        """Raises `InvalidField` for settings that would be unsafe or cannot work."""
        if not self.is_local and not self.keys and not self.allow_no_key:
            allowed = "other machines may call it without a key: give --api-key, or --no-auth"
            raise InvalidField("host", self.host, allowed)
        if (self.certificate is None) != (self.certificate_key is None):
            raise InvalidField("tls_cert", str(self.certificate), "give --tls-cert and --tls-key")
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                allowed = "should be as browsers send it, such as https://example.org, or *"
                raise InvalidField("cors_origin", origin, allowed)
        for host in self.allowed_hosts:
            if not _HOST_NAME.fullmatch(host):
                allowed = "should be a name without scheme and port, such as box.local, or *"
                raise InvalidField("allow_host", host, allowed)

    @property
    def can_reload(self) -> bool:
        """There is a file of keys or a certificate, which may change."""
        return self.read_keys_again is not None or self.certificate is not None

    @property
    def is_local(self) -> bool:
        """Only this machine can reach it."""
        if self.unix_socket is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
