"""What a rank is told when it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mlc_llm.library.metadata import Metadata
from mlc_llm.runtime.batch import RunnerLimits, Window


@dataclass(frozen=True)
class RankSetup:
    """Plain data."""

    rank: int
    shards: int
    library: str
    weights: str
    """Folders."""
    num_pages: int
    max_num_sequence: int
    max_batch_tokens: int
    context_window: int
    window: Window | None
    parent: int
    """The process of rank 0: without it, the others end."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(text: bytes) -> RankSetup:
        raw: dict[str, Any] = json.loads(text)
        window = raw.pop("window")
        return RankSetup(**raw, window=None if window is None else Window(**window))

    def limits(self, metadata: Metadata) -> RunnerLimits:
        """What a `ModelStep` has to know of them."""
        return RunnerLimits(
            num_pages=self.num_pages,
            page_size=metadata.kv.page_size,
            max_num_sequence=self.max_num_sequence,
            max_batch_tokens=self.max_batch_tokens,
            context_window=self.context_window,
            vocab_size=metadata.vocab_size,
        )


def tables_identity(metadata: Metadata) -> Mapping[str, object]:
    """What has to be the same in all ranks, so that they can read the same tables."""
    kv = metadata.kv
    groups = [
        [list(one.layers), one.window, one.query_block, one.fast_query_block, one.kv_split]
        for one in kv.groups
    ]
    names = [metadata.backend, metadata.architecture, metadata.tvm_version]
    sizes = [metadata.hidden_size, metadata.vocab_size, metadata.ropes, metadata.shards]
    return {"page_size": kv.page_size, "groups": groups, "names": names, "sizes": sizes}
