"""The only file of the core that knows a real runner, and with it TVM."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlc_llm.backends.base import BrokenLibrary
from mlc_llm.compiler.jit import prepare
from mlc_llm.errors import MLCError, ModelFileError
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.packed_file import BrokenParams
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import window_of

if TYPE_CHECKING:
    from mlc_llm.serve.model_args import ModelBundle

_log = logging.getLogger(__name__)


def create_runner(bundle: ModelBundle, config: EngineConfig, device: str) -> ModelRunner:
    """The model of `bundle`, compiled for this machine, with pages as `config` says.

    `config` is complete (every limit set). A cached library or packed weights that turn out broken
    are made again, once. Raises UserError, CompileError.
    """
    assert bundle.gguf is not None
    assert device == "cpu", device
    if config.model_lib is not None:
        vocab_size = bundle.tokenizer.vocab_size
        weights = prepare(bundle.gguf, config.kernels, vocab_size=vocab_size).weights
        try:
            return _runner(Path(config.model_lib), weights, config)
        except (BrokenLibrary, BrokenParams) as error:
            raise ModelFileError(f"model_lib {config.model_lib} cannot be used: {error}") from error
    wanted: dict[str, Any] = {
        "vocab_size": bundle.tokenizer.vocab_size,
        "fast": config.prompt_precision == "fast",
        "windowed": window_of(config) is not None,
    }
    prepared = prepare(bundle.gguf, config.kernels, **wanted)
    try:
        return _runner(prepared.library, prepared.weights, config)
    except (BrokenLibrary, BrokenParams) as error:
        _log.warning("the cached model is broken and is made again: %s", error)
    prepared = prepare(bundle.gguf, config.kernels, **wanted, rebuild=True)
    try:
        return _runner(prepared.library, prepared.weights, config)
    except (BrokenLibrary, BrokenParams) as error:
        raise MLCError(f"a model that was made just now cannot be loaded: {error}") from error


def _runner(library: Path, weights: Path, config: EngineConfig) -> ModelRunner:
    assert config.max_num_sequence and config.max_total_sequence_length
    assert config.prefill_chunk_size and config.max_single_sequence_length
    return ModelRunner(
        library,
        weights,
        num_pages=-(-config.max_total_sequence_length // config.kv_cache_page_size),
        max_num_sequence=config.max_num_sequence,
        max_batch_tokens=config.prefill_chunk_size,
        context_window=config.max_single_sequence_length,
        window=window_of(config),
        fast_prompts=config.prompt_precision == "fast",
    )
