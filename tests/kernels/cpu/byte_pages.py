"""Keys and values as bytes with scales in NumPy, by the words of `library/page_format.py` alone."""

from __future__ import annotations

import numpy as np
from kernel_tools import Array

PAGE, GROUP = 16, 32


def block_width(head_dim: int) -> int:
    """Bytes of the keys, or the values, of a page of one KV head."""
    used = PAGE * head_dim + 2 * PAGE * len(range(0, head_dim, GROUP))
    return (used + 63) // 64 * 64


def quantised(x: Array) -> tuple[Array, Array]:
    """Whole numbers like x, and the scale of each of its groups. x: one token's head."""
    whole, scales = [], []
    for start in range(0, len(x), GROUP):
        part = x[start : start + GROUP].astype(np.float32)
        bits = (np.abs(part).max() / np.float32(127)).view(np.uint32)
        scale = np.uint32((int(bits) + 0xFFFF) & 0xFFFF0000).view(np.float32)
        scales.append(scale)
        whole.append(np.rint(part / scale) if scale else 0 * part)
    return np.concatenate(whole).astype(np.int8), np.array(scales, np.float32)


def put(stored: Array, page: int, kind: int, at: int, x: Array) -> Array:
    """Writes a token's keys (kind 0) or values (1), [kv_heads, head_dim]. Returns what they are
    now; what is NaN stays so."""
    found = np.full(x.shape, np.nan, np.float32)
    for head, one in enumerate(x):
        if not np.isnan(one).any():
            whole, scales = quantised(one)
            _write(stored[page, head, kind], kind, at, whole, scales)
            found[head] = whole * np.repeat(scales, GROUP)[: len(one)]
    return found


def take(stored: Array, page: int, kind: int, at: int, head_dim: int) -> Array:
    """A token's keys or values, float32 [kv_heads, head_dim]."""
    blocks = stored[page, :, kind]
    parts = blocks[:, : PAGE * head_dim]
    whole = parts[:, at::PAGE] if kind == 0 else parts[:, at * head_dim : (at + 1) * head_dim]
    halves = blocks[:, PAGE * head_dim :].copy().view(np.uint16)[:, at::PAGE]
    scales = (halves.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # 0 times infinity
        return np.asarray(whole * np.repeat(scales, GROUP, axis=1)[:, :head_dim])


def spoil(stored: Array, page: int, kind: int, at: int, head_dim: int) -> None:
    """Makes a token NaN."""
    groups = len(range(0, head_dim, GROUP))
    for block in stored[page, :, kind]:
        _write(block, kind, at, np.full(head_dim, 77, np.int8), np.full(groups, np.nan))


def _write(block: Array, kind: int, at: int, whole: Array, scales: Array) -> None:
    head_dim = len(whole)
    if kind == 0:
        block[at : PAGE * head_dim : PAGE] = whole
    else:
        block[at * head_dim : (at + 1) * head_dim] = whole
    halves = (scales.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    for group, half in enumerate(halves):
        start = PAGE * head_dim + 2 * (group * PAGE + at)
        block[start : start + 2] = np.frombuffer(half.tobytes(), np.int8)
