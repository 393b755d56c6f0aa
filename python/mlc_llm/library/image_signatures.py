"""The function of the library of a tower of images; see `signatures.py` for those of a decoder.

m patches of an image, t query blocks, n pages of one image.

image_embed  patches float32 [m, numbers], position [m], fast_tokens [1], slots [m], places [m],
             query_blocks [t, 3], page_ids [n], window [2]; pages, changed in place; params
             -> float32 [tokens, width], which stand in the place of the image's tokens
  patches       row of patches by row; the numbers of the first colour of a patch come first
  places        the last patch, for all of them: they see the whole image
  pages         room for the keys and values of one layer; nothing in them is kept
"""

from __future__ import annotations

from mlc_llm.library.metadata import KVInfo, TowerInfo
from mlc_llm.library.signatures import Tensor

IMAGE_EMBED = "image_embed"


def image_signatures(
    tensor: Tensor, *, kv: KVInfo, tower: TowerInfo
) -> dict[str, dict[str, object]]:
    """By function and argument, in order; `params`, which it takes last, is left out."""
    (group,), count = kv.groups, tower.patches
    return {
        IMAGE_EMBED: {
            "patches": tensor("float32", count, tower.patch_numbers),
            "position": tensor("int32", count),
            "fast_tokens": tensor("int32", 1),
            "slots": tensor("int32", count),
            "places": tensor("int32", count),
            "query_blocks": tensor("int32", "t", 3),
            "page_ids": tensor("int32", "n"),
            "window": tensor("int32", 2),
            "pages": tensor(kv.dtype, "pages", group.kv_heads, 2, kv.page_size * group.head_dim),
        }
    }
