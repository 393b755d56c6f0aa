"""The model runner of an opened model: its library is found or compiled, its weights are read."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from mlc_llm.compiler.jit import packed_weights, prepare, prepare_weights
from mlc_llm.errors import MLCError, ModelFileError
from mlc_llm.library.metadata import METADATA_FILE, BrokenLibrary
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.models.image_spec import Sight
from mlc_llm.pooling import encoder_pooling
from mlc_llm.precision import Precision
from mlc_llm.runtime.encoder_runner import EncoderRunner
from mlc_llm.runtime.image_runner import ImageRunner
from mlc_llm.runtime.medusa_runner import MedusaRunner
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.packed_file import BrokenParams, ReadWeights, read_packed
from mlc_llm.runtime.read_ahead import ReadAhead
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import adapter_limits, draft_states_of, window_of
from mlc_llm.serve.opening.bundle import ModelBundle
from mlc_llm.serve.opening.shares import Folders, parts_of, shards_of, started

AnyRunner: TypeAlias = ModelRunner | EncoderRunner | MedusaRunner
_log = logging.getLogger(__name__)


def begin_weights(
    reading: ReadAhead, files: ModelFiles, free: int, kernels: str | None, shards: int = 1
) -> None:
    """Begin to read a model's packed weights, or those of rank 0, if they are in the cache and fit.

    free: bytes of free memory. Does nothing for a model with an error: whoever makes the runner
    finds the error too, and says what it is.
    """
    with suppress(MLCError, OSError):
        folder = packed_weights(parts_of(files, shards)[0], kernels)
        if folder is not None:
            reading.begin(folder, free)


def create_runner(
    bundle: ModelBundle,
    config: EngineConfig,
    read: ReadWeights = read_packed,
    tower: ImageRunner | None = None,
) -> AnyRunner:
    """The model of `bundle`, compiled for this machine, with pages as `config` says.

    config: complete, every limit is set, and `kernels` are those of the device. read: gives the
    packed weights in a folder. tower: of `bundle.vision`; None: the library is one without images.

    A cached library or packed weights that turn out to be broken are made again, once. Raises
    UserError, CompileError.
    """
    if config.model_lib is not None:
        return _runner_of_library(Path(config.model_lib), bundle, config, read)
    sight = None if tower is None or bundle.vision is None else bundle.vision.sight
    folders = _prepare(bundle, config, sight)
    try:
        return _runner(folders, bundle, config, read, tower)
    except (BrokenLibrary, BrokenParams) as error:
        _log.warning("the cached model is broken and is made again: %s", error)
    folders = _prepare(bundle, config, sight, rebuild=True)
    try:
        return _runner(folders, bundle, config, read, tower)
    except (BrokenLibrary, BrokenParams) as error:
        raise MLCError(f"a model that was made just now cannot be loaded: {error}") from error


def _runner_of_library(
    library: Path, bundle: ModelBundle, config: EngineConfig, read: ReadWeights
) -> AnyRunner:
    """The runner of a library that the caller has named."""
    assert bundle.files is not None
    weights = prepare_weights(bundle.files, kernels_of(library) or config.kernels)
    try:
        return _runner([Folders(library, weights)], bundle, config, read)
    except (BrokenLibrary, BrokenParams) as error:
        raise ModelFileError(f"model_lib {config.model_lib} cannot be used: {error}") from error


def precision_of(config: EngineConfig) -> Precision:
    """Of a config in which `auto` is decided."""
    assert config.precision != "auto", "it is not decided"
    return config.precision or "exact"


def kernels_of(library: Path) -> str | None:
    """The kernels of a library; None if its metadata does not say."""
    try:
        stated = json.loads((library / METADATA_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    name = stated.get("backend") if isinstance(stated, dict) else None
    return name if isinstance(name, str) else None


def _prepare(
    bundle: ModelBundle, config: EngineConfig, sight: Sight | None, *, rebuild: bool = False
) -> list[Folders]:
    """Of each rank."""
    assert bundle.files is not None
    found = []
    for files in parts_of(bundle.files, shards_of(config)):
        one = prepare(
            files,
            config.kernels,
            vocab_size=bundle.tokenizer.vocab_size,
            precision=precision_of(config),
            windowed=window_of(config) is not None,
            adapted=bool(config.max_adapters),
            kv_cache=config.kv_cache_dtype,
            sight=sight,
            rebuild=rebuild,
        )
        found.append(Folders(one.library, one.weights))
    return found


def _runner(
    folders: Sequence[Folders],
    bundle: ModelBundle,
    config: EngineConfig,
    read: ReadWeights,
    tower: ImageRunner | None = None,
) -> AnyRunner:
    """folders: of each rank."""
    library, weights = folders[0]
    assert config.max_num_sequence and config.max_total_sequence_length
    assert config.prefill_chunk_size and config.max_single_sequence_length
    if bundle.is_medusa:
        return MedusaRunner(library, weights, read)
    if bundle.is_encoder:
        return EncoderRunner(
            library,
            weights,
            pooling=encoder_pooling(bundle.pooling),
            max_num_sequence=config.max_num_sequence,
            max_batch_tokens=config.prefill_chunk_size,
            context_window=config.max_single_sequence_length,
            precision=precision_of(config),
            read=read,
        )
    with started(folders, config) as make_step:
        return ModelRunner(
            library,
            weights,
            num_pages=-(-config.max_total_sequence_length // config.kv_cache_page_size),
            max_num_sequence=config.max_num_sequence,
            max_batch_tokens=config.prefill_chunk_size,
            context_window=config.max_single_sequence_length,
            window=window_of(config),
            precision=precision_of(config),
            read=read,
            adapters=adapter_limits(config),
            make_step=make_step,
            kv_cache=config.kv_cache_dtype,
            tower=tower,
            draft_states=draft_states_of(config),
        )
