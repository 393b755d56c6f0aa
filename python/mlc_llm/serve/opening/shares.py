"""Tensor parallel: which share of a model each rank has, and what the ranks are told."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mlc_llm.backends.registry import choose_backend
from mlc_llm.errors import InvalidField
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.models.sharding import FIELD, Share
from mlc_llm.runtime.model_step import MakeStep, ModelStep, Sizes
from mlc_llm.runtime.ranks.setup import RankSetup
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import draft_states_of, window_of

if TYPE_CHECKING:
    from mlc_llm.backends.base import Backend


class Folders(NamedTuple):
    """What a rank computes with."""

    library: Path
    weights: Path


def shards_of(config: EngineConfig) -> int:
    """Ranks that compute the model of a config."""
    return config.tensor_parallel_shards or 1


def parts_of(files: ModelFiles, shards: int) -> list[ModelFiles]:
    """The share of each rank; the whole model, if there is one rank. Raises InvalidField for a
    model that cannot be split so."""
    if shards == 1:
        return [files]
    from mlc_llm.model_files.shared import SharedModel

    return [SharedModel.of_files(files, Share(rank, shards)) for rank in range(shards)]


def check_ranks(backend: Backend, shards: int) -> None:
    """Raises InvalidField if this machine cannot have so many ranks."""
    why = backend.why_no_ranks(shards) if shards > 1 else None
    if why is not None:
        raise InvalidField(FIELD, shards, why)


@contextmanager
def started(folders: Sequence[Folders], config: EngineConfig) -> Iterator[MakeStep]:
    """Start all ranks but 0; gives what makes the step of rank 0. An error in the block ends them.
    Raises `MLCError`."""
    if len(folders) == 1:
        yield ModelStep
        return
    from mlc_llm.runtime.ranks.group import start_ranks

    group, make_step = start_ranks(_setups(folders, config))
    try:
        yield make_step
    except BaseException:
        group.close()
        raise


def _setups(folders: Sequence[Folders], config: EngineConfig) -> list[RankSetup]:
    assert config.max_num_sequence and config.max_total_sequence_length
    assert config.prefill_chunk_size and config.max_single_sequence_length
    sizes = Sizes(
        num_pages=-(-config.max_total_sequence_length // config.kv_cache_page_size),
        max_num_sequence=config.max_num_sequence,
        max_batch_tokens=config.prefill_chunk_size,
        context_window=config.max_single_sequence_length,
        draft_states=draft_states_of(config),
    )
    backend = choose_backend(config.kernels)
    return [
        RankSetup(
            rank=rank,
            shards=len(folders),
            library=str(one.library),
            weights=str(one.weights),
            sizes=sizes,
            window=window_of(config),
            parent=os.getpid(),
            environment=backend.rank_environment(rank),
        )
        for rank, one in enumerate(folders)
        if rank
    ]
