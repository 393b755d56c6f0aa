"""From an `EngineConfig` to an engine core with its model."""

from __future__ import annotations

import itertools
import logging
import weakref
from contextlib import suppress
from dataclasses import dataclass, field, replace

from mlc_llm.compiler.jit import packed_weights
from mlc_llm.errors import InvalidField, MLCError
from mlc_llm.library.metadata import PARAMS_FILE
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.read_ahead import begin_reading, readings_dropped
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.create import create_runner
from mlc_llm.serve.core.draft_model import DraftModel
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.core.mock_echo import EchoCore, echo_config
from mlc_llm.serve.engine_base import (
    MOCK_ECHO,
    ModelInfo,
    _parse_models,
    _process_model_args,
    detect_device,
)
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.limits import ModelSize
from mlc_llm.serve.memory import Memory, look_at_memory
from mlc_llm.serve.model_args import ModelBundle, echo_bundle, open_texts
from mlc_llm.serve.sizing import model_size

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenEngine:
    """A core, the model behind it, and the config with every limit filled in."""

    core: EngineCore
    bundle: ModelBundle
    config: EngineConfig
    runners: tuple[ModelRunner, ...] = ()
    """What computes inside the core; nothing in the echo engine."""
    load_id: int = field(default_factory=itertools.count(1).__next__)
    """Another number each time that a model is opened."""


def open_engine(
    config: EngineConfig, device: str, trace: EventTraceRecorder | None = None
) -> OpenEngine:
    """Open the model, decide the limits, compile or load its library. Raises `UserError`."""
    kind = str(detect_device(device)).partition(":")[0]
    if MOCK_ECHO in (config.model, config.model_lib):
        return _open_echo(config, trace)
    models = _parse_models(config.model, config.model_lib, config.additional_models)
    memory = look_at_memory()
    with readings_dropped():
        bundles = _process_model_args(
            models, lambda file: _read_ahead(file, memory.free // 2, config.kernels)
        )
        if config.mode != "interactive":  # nobody's stream is to wait for another's prompt
            for bundle in bundles:
                bundle.tokenizer.complete()
        return _open_models(config, kind, models, bundles, memory=memory, trace=trace)


def _read_ahead(file: GGUFFile, most: int, kernels: str | None) -> None:
    """Begin to read a model's packed weights, if they are there and have at most so many bytes.

    What is wrong with the model is said by who opens it.
    """
    with suppress(MLCError, OSError):
        folder = packed_weights(file, kernels)
        if folder is not None and (folder / PARAMS_FILE).stat().st_size <= most:
            begin_reading(folder)


def _open_models(
    config: EngineConfig,
    kind: str,
    models: list[ModelInfo],
    bundles: list[ModelBundle],
    *,
    memory: Memory,
    trace: EventTraceRecorder | None,
) -> OpenEngine:
    """The engine of opened models; `memory`: as it was before any was read."""
    bundle, *drafts = bundles
    size = model_size(bundle, config.kernels)
    tokens = _tokens(bundle, size)
    for draft in drafts:
        size = replace(size, draft=_draft_size(draft, tokens, config.kernels))
    complete, plan, held = memory.take(config, size, bundle.name)
    if config.verbose:
        _log.info("memory: %s", plan.describe())
    try:
        runner = create_runner(bundle, complete, kind)
        guessers = [
            create_runner(draft, _draft_config(draft, info.model_lib, complete), kind)
            for draft, info in zip(drafts, models[1:], strict=True)
        ]
        core = EngineCore(
            runner,
            bundle.tokenizer,
            complete,
            stop_token_ids=bundle.stop_token_ids,
            trace=trace,
            drafter=DraftModel(guessers[0]) if guessers else None,
        )
    except BaseException:
        held.release()
        raise
    memory.opened(held, size)
    weakref.finalize(core, held.release)  # its pages go with it
    return OpenEngine(core, bundle, complete, (runner, *guessers))


def _draft_size(draft: ModelBundle, tokens: int, kernels: str | None) -> ModelSize:
    """The size of a draft model. Raises `InvalidField` for one that has not so many tokens."""
    found = model_size(draft, kernels)
    if _tokens(draft, found) != tokens:
        words = (
            f"it has {_tokens(draft, found)} tokens and the model {tokens}: a draft model "
            "needs the same vocabulary"
        )
        raise InvalidField("additional_models", draft.name, words)
    return found


def _tokens(bundle: ModelBundle, size: ModelSize) -> int:
    """How many tokens may be chosen; the model may have more rows than its tokenizer tokens."""
    return min(size.vocab_size, bundle.tokenizer.vocab_size)


def _draft_config(
    draft: ModelBundle, model_lib: str | None, complete: EngineConfig
) -> EngineConfig:
    """The model's limits, within the draft model's own window: no drafts for what is longer.

    Guesses are checked anyway, so the draft model has no prompts to be exact about or not.
    """
    assert complete.max_single_sequence_length
    window = min(complete.max_single_sequence_length, draft.context_window)
    return replace(
        complete,
        model_lib=model_lib,
        max_single_sequence_length=window,
        prompt_precision="exact",
    )


def _open_echo(config: EngineConfig, trace: EventTraceRecorder | None) -> OpenEngine:
    """The echo engine with the tokenizer of a model, or with one of bytes and no model at all."""
    complete = echo_config(config)
    context = complete.max_single_sequence_length
    assert context is not None
    is_bare = config.model == MOCK_ECHO
    bundle = echo_bundle(context) if is_bare else open_texts(config.model, context)
    return OpenEngine(EchoCore(bundle.tokenizer, complete, trace), bundle, complete)
