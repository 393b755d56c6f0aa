"""Cache blocks: runs of 64 tokens, and keys by which all machines know them.

A block begins at a multiple of 64 tokens. Its key says what it holds and all that comes before it:
it is a hash of its tokens and of the key of the block before. So two sequences have a block in
common exactly if they have its key in common.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_TOKENS = 64
KEY_BYTES = 8


def root_key(salt: str = "", adapter: str = "") -> int:
    """What stands before the first block of a prompt. Prompts of another salt or another adapter
    have other keys."""
    if not salt and not adapter:
        return 0
    return _key(f"{len(salt)}:{salt}{adapter}".encode())


def salt_digest(salt: str) -> str:
    """A name for a salt that does not show it: 32 hexadecimal digits."""
    return blake2b(salt.encode(), digest_size=16, person=b"kv-salt").hexdigest()


def next_key(parent: int, tokens: array[int]) -> int:
    """The key of a block: 64 bits, never negative. parent: the key before it, or the root's.
    tokens: an array of type "i" with `BLOCK_TOKENS` ids."""
    return _key(parent.to_bytes(KEY_BYTES, "little") + tokens.tobytes())


def block_keys(tokens: Sequence[int], root: int = 0) -> list[int]:
    """The keys of all whole blocks of a prompt. Tokens at its end that fill no block have none."""
    ids = array("i", tokens)
    keys, parent = [], root
    for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
        parent = next_key(parent, ids[end - BLOCK_TOKENS : end])
        keys.append(parent)
    return keys


def _key(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=KEY_BYTES).digest(), "little")
