"""The only file of the core that knows a real runner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlc_llm.runtime.batch import Runner
from mlc_llm.serve.config import EngineConfig

if TYPE_CHECKING:
    from mlc_llm.serve.model_args import ModelBundle


def create_runner(bundle: ModelBundle, config: EngineConfig, device: str) -> Runner:
    """The model of `bundle`, compiled for this machine, with pages as `config` says.

    `config` is complete (every limit set).
    """
    # TVM takes a second to import: the core does without it.
    from mlc_llm.runtime.model_runner import load_runner

    assert bundle.gguf is not None
    assert config.max_num_sequence and config.max_total_sequence_length
    assert config.prefill_chunk_size and config.max_single_sequence_length
    return load_runner(
        bundle.gguf,
        device=device,
        max_num_sequence=config.max_num_sequence,
        max_total_tokens=config.max_total_sequence_length,
        max_batch_tokens=config.prefill_chunk_size,
        context_window=config.max_single_sequence_length,
    )
