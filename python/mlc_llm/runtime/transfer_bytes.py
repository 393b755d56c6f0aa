"""A transfer as bytes: a line of JSON, then the bytes of its tensors.

They come from elsewhere, so every size is checked before it is used. The line names the tokens of
the prompt by a hash: pages of another prompt of the same length would be wrong, and nothing else
would notice it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from mlc_llm.errors import TransferRefused
from mlc_llm.runtime.transfer import Array, Transfer

if TYPE_CHECKING:
    import numpy as np
else:
    from mlc_llm.later_numpy import np

FORM = "mlc-llm-pages-1"
MAX_HEAD_BYTES = 1 << 20
MAX_DIMENSIONS = 8
DTYPES = ("float32", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32")

_BROKEN = "the pages were cut short or altered on their way"


def tokens_digest(tokens: Sequence[int]) -> str:
    """A hash of token ids."""
    found = hashlib.blake2b(digest_size=16)
    found.update(np.asarray(tokens, np.int64).tobytes())
    return found.hexdigest()


def to_bytes(transfer: Transfer, tokens: Sequence[int]) -> bytes:
    """tokens: the ones that the pages belong to. Raises `TransferRefused` for tensors of a type
    that has no name here."""
    for one in transfer.tensors:
        if str(one.dtype) not in DTYPES:
            raise TransferRefused(f"pages of type {one.dtype} cannot be sent")
    head = {
        "form": FORM,
        "identity": transfer.identity,
        "length": transfer.length,
        "freed": transfer.freed,
        "digest": transfer.digest,
        "tokens": tokens_digest(tokens),
        "tensors": [[str(one.dtype), one.shape] for one in transfer.tensors],
    }
    line = json.dumps(head).encode()
    return b"".join(
        [line, b"\n", *(np.ascontiguousarray(one).tobytes() for one in transfer.tensors)]
    )


def from_bytes(data: bytes, tokens: Sequence[int]) -> Transfer:
    """The transfer that `to_bytes` has written for these tokens. Its checksum is that of its
    sender: `Transfer.check` compares it. Raises `TransferRefused`."""
    end = data.find(b"\n", 0, MAX_HEAD_BYTES)
    try:
        head = json.loads(data[:end] if end >= 0 else b"")
        if not isinstance(head, dict) or head["form"] != FORM:
            raise TransferRefused("the pages have another form; both sides need one version")
        if head["tokens"] != tokens_digest(tokens):
            raise TransferRefused("the pages belong to another prompt")
        freed = tuple((int(first), int(behind)) for first, behind in head["freed"])
        identity, length, digest = str(head["identity"]), int(head["length"]), str(head["digest"])
        tensors = _tensors(head, memoryview(data)[end + 1 :])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise TransferRefused(_BROKEN) from error
    return Transfer(identity, length, freed, tensors, digest)


def _tensors(head: Mapping[str, Any], rest: memoryview) -> tuple[Array, ...]:
    """Views of the bytes. Raises `ValueError` unless they are exactly as many as the head says."""
    found = []
    for name, shape in cast("list[tuple[str, list[int]]]", head["tensors"]):
        if name not in DTYPES or len(shape) > MAX_DIMENSIONS:
            raise ValueError(name)
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(shape)
        dtype = np.dtype(name)
        size = math.prod(shape) * dtype.itemsize
        if size > len(rest):
            raise ValueError(size)
        found.append(np.frombuffer(rest[:size], dtype).reshape(shape))
        rest = rest[size:]
    if len(rest):
        raise ValueError(len(rest))
    return tuple(found)
