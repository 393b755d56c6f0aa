"""Who calls: the keys of a server, and what is known of those who have one.

A key is kept as its hash alone, so nothing can show it: no log, no message, no `repr`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import field
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.errors import InvalidField
from mlc_llm.record import record

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

KEY_VARIABLE = "MLC_LLM_API_KEY"
MAX_KEY_FILE_BYTES = 1 << 20
MAX_WEIGHT = 1000
TENANT = "mlc_llm.tenant"
"""Where `Guard` writes down who sent a request."""


@record()
class Tenant:
    """Those who call with one key. They share what they get with all other tenants."""

    digest: bytes = field(default=b"", repr=False)
    """SHA-256 of the key; empty without keys."""
    name: str = ""
    """For logs; empty if the file gives none."""
    weight: int = 1
    """With twice the weight, twice the share."""
    is_admin: bool = False
    """May open and close models."""

    @property
    def salt(self) -> str:
        """What others' prompts are kept apart by; empty without keys."""
        return self.digest.hex()


ANYBODY = Tenant()
"""The one tenant of a server without keys."""


class Keyring:
    """The keys of a server. `replace` is seen by the next request."""

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        self._tenants = tuple(tenants)

    def __len__(self) -> int:
        return len(self._tenants)

    def __repr__(self) -> str:
        return f"<{len(self)} keys>"

    @property
    def has_admin(self) -> bool:
        return any(one.is_admin for one in self._tenants)

    def number_of(self, tenant: Tenant) -> int:
        """Which key a tenant has, in the order in which they were given, from 1."""
        return self._tenants.index(tenant) + 1

    def replace(self, other: Keyring) -> None:
        """Take over the keys of another one."""
        self._tenants = other._tenants

    def find(self, key: bytes) -> Tenant | None:
        """All keys are compared, so that the time says nothing about them."""
        given = digest_of(key)
        found = [one for one in self._tenants if compare_digest(given, one.digest)]
        return found[0] if found else None


def digest_of(key: bytes) -> bytes:
    return sha256(key).digest()


def tenant_of(request: HTTPConnection) -> Tenant:
    """Who sent a request."""
    found = request.scope.get(TENANT, ANYBODY)
    assert isinstance(found, Tenant)
    return found


def read_keys(given: Sequence[str], file: Path | None) -> Keyring:
    """Keys from the command line, from a file (one a line), and from the environment.

    Raises `InvalidField` for a file that cannot be read or has no key, and for an empty key.
    """
    found = [_tenant(key, "api_key") for key in given]
    if file is not None:
        found += _tenants_in(file)
    from_environment = os.environ.get(KEY_VARIABLE)
    if from_environment:
        found.append(_tenant(from_environment, KEY_VARIABLE))
    first = {one.digest: one for one in reversed(found)}
    return Keyring(reversed(first.values()))


def _tenants_in(file: Path) -> list[Tenant]:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_KEY_FILE_BYTES + 1)  # a pipe has no size
        if len(data) > MAX_KEY_FILE_BYTES:
            raise InvalidField("api_key_file", str(file), "at most 1 MB")
        lines = data.decode("utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidField("api_key_file", str(file), f"cannot be read: {reason}") from error
    found = [
        _line(line, f"line {number}")  # a long path would be cut, and the number with it
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    ]
    if not found:
        raise InvalidField("api_key_file", str(file), "it has no key; write one a line")
    return found


def _line(line: str, place: str) -> Tenant:
    """`KEY [name=NAME] [weight=N] [admin]`. An error names the place, and shows no key."""
    key, *options = line.split()
    values: dict[str, str] = {}
    for number, option in enumerate(options, 2):
        name, _, value = option.partition("=")
        if name not in ("name", "weight", "admin") or (name == "admin") == bool(value):
            allowed = "behind the key may be name=NAME, weight=N and admin"
            raise InvalidField("api_key_file", f"{place}, word {number}", allowed)
        values[name] = value
    weight = values.get("weight", "1")
    if not weight.isdecimal() or not 1 <= int(weight[:9]) <= MAX_WEIGHT:
        raise InvalidField("api_key_file", place, f"weight should be 1 to {MAX_WEIGHT}")
    return _tenant(key, place, values.get("name", ""), int(weight), is_admin="admin" in values)


def _tenant(
    key: str, place: str, name: str = "", weight: int = 1, *, is_admin: bool = False
) -> Tenant:
    if not key.strip():
        raise InvalidField(place, "", "a key should have at least one character")
    return Tenant(digest_of(key.strip().encode()), name, weight, is_admin)
