"""The settings of a server."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlc_llm.errors import InvalidField

KEY_VARIABLE = "MLC_LLM_API_KEY"
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
MAX_KEY_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one client may ask of the server. Times are in seconds."""

    body_bytes: int = 32 << 20
    header_bytes: int = 64 << 10
    header_s: float = 20.0
    """A connection has so long to send the head of a request."""
    body_s: float = 60.0
    """A request has so long to send its body."""
    write_s: float = 60.0
    """A reader that takes nothing for so long is given up."""
    queue: int = 256
    """Answers that may wait, beyond those that the engine computes at a time. A request with n
    answers counts as n."""
    queued_prompt_bytes: int = 64 << 20
    """Bytes of the requests that wait or run."""
    connections: int = 1024
    keep_alive_s: float = 30.0
    ping_s: float = 15.0
    """A stream without news gets a comment so often, for proxies."""
    drain_s: float = 30.0
    """After SIGTERM, running answers have so long to end."""


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, and whom it serves."""

    host: str = "127.0.0.1"
    port: int = 8000
    unix_socket: Path | None = None
    """Listen here instead of on a port."""
    keys: tuple[str, ...] = ()
    """Each request needs one of them; without any, every request is served."""
    allow_no_key: bool = False
    """Listen to other machines without a key."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients may call this server, beside its address and local names. "*": all."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may call this server from a browser, such as https://example.org. "*": all."""
    served_names: tuple[str, ...] = ()
    """Names of the model; empty: the model's own."""
    any_name: bool = False
    """A request may give the model any name."""
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
        if any(not key.strip() for key in self.keys):
            raise InvalidField("api_key", "", "a key should have at least one character")
        if (self.certificate is None) != (self.certificate_key is None):
            raise InvalidField("tls_cert", str(self.certificate), "give --tls-cert and --tls-key")

    @property
    def is_local(self) -> bool:
        """Only this machine can reach it."""
        if self.unix_socket is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """Keys from the command line, from a file (one a line), and from the environment.

    Raises `InvalidField` for a file that cannot be read or has no key.
    """
    found = [*given]
    if file is not None:
        found += _keys_of(file)
    from_environment = os.environ.get(KEY_VARIABLE)
    if from_environment:
        found.append(from_environment)
    return tuple(dict.fromkeys(found))


def _keys_of(file: Path) -> list[str]:
    try:
        if file.stat().st_size > MAX_KEY_FILE_BYTES:
            raise InvalidField("api_key_file", str(file), "at most 1 MB")
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidField("api_key_file", str(file), f"cannot be read: {error}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise InvalidField("api_key_file", str(file), "it has no key; write one a line")
    return keys
