"""How keys and values are kept in a KV page, and how much room they take.

A page of a KV head has the keys and the values of `page_size` tokens, one block each:

    float32, float16   page_size * head_dim numbers
    int8               page_size * head_dim whole numbers q, then the scales of their groups, two
                       bytes each, [groups, page_size], then nothing up to a multiple of 64 bytes

A group is `GROUP` elements of a token's head, the last one may be shorter. Its scale is the upper
half of a float32, and at least a 127th of the group's largest element: element = q * scale.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

KVCacheDtype: TypeAlias = Literal["auto", "int8"]
"""`auto`: as the kernels read them fastest without loss of accuracy, float16 or float32."""
KV_CACHE_DTYPES: tuple[KVCacheDtype, ...] = ("auto", "int8")

GROUP = 32
"""Elements of a head that share a scale."""
SCALE_BYTES = 2
_LINE = 64
_BYTES = {"float32": 4, "float16": 2, "int8": 1}


def element_bytes(dtype: str) -> int:
    """Bytes of an element of a page."""
    return _BYTES[dtype]


def scale_groups(head_dim: int) -> int:
    """Groups of a head."""
    return -(-head_dim // GROUP)


def block_elements(dtype: str, page_size: int, head_dim: int) -> int:
    """Elements of the keys, or of the values, of a page of one KV head."""
    if dtype != "int8":
        return page_size * head_dim
    used = page_size * (head_dim + SCALE_BYTES * scale_groups(head_dim))
    return used + -used % _LINE
