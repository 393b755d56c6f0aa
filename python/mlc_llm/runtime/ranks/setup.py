"""What a rank is told when it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mlc_llm.library.metadata import Metadata
from mlc_llm.record import record
from mlc_llm.runtime.kv_cache import group_windows
from mlc_llm.runtime.limits import RunnerLimits, Window
from mlc_llm.runtime.model_step import Sizes, limits_of


@record()
class RankSetup:
    """Plain data."""

    rank: int
    shards: int
    library: str
    weights: str
    """Folders."""
    sizes: Sizes
    window: Window | None
    parent: int
    """The process of rank 0: without it, the others end."""
    environment: Mapping[str, str]
    """Variables that its process has beside those of rank 0."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(text: bytes) -> RankSetup:
        raw: dict[str, Any] = json.loads(text)
        window, sizes = raw.pop("window"), Sizes(*raw.pop("sizes"))
        return RankSetup(**raw, sizes=sizes, window=None if window is None else Window(**window))

    def limits(self, metadata: Metadata) -> RunnerLimits:
        """What a `ModelStep` has to know of them."""
        return limits_of(metadata, self.sizes, group_windows(metadata.kv, self.window))


def tables_identity(metadata: Metadata) -> Mapping[str, object]:
    """What has to be the same in all ranks, so that they can read the same tables."""
    kv = metadata.kv
    groups = [
        [list(one.layers), one.window, one.kv_split, *blocks]
        for one in kv.groups
        for blocks in [(one.query_block, one.fast_query_block, one.apart)]
    ]
    names = [metadata.backend, metadata.architecture, metadata.tvm_version]
    sizes = [metadata.hidden_size, metadata.vocab_size, metadata.ropes, metadata.shards]
    return {"page_size": kv.page_size, "groups": groups, "names": names, "sizes": sizes}
