"""How an engine is opened: from an `EngineConfig` to an engine core with its model.

1. The arguments are checked (`arguments.py`), and free memory is looked at (`memory.py`).
2. Each model's files are opened (`bundle.py`, with the help of `header_cache.py` and
   `settings.py`). As soon as a header is known to be sound, a thread begins to read the weights.
3. The limits of the engine are decided, and their memory is promised to it (`memory.py`).
4. Libraries are found or compiled, and runners made with the weights (`runner.py`).
5. The engine core is made around the runner.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.errors import InvalidField
from mlc_llm.pooling import LAST_TOKEN
from mlc_llm.record import record
from mlc_llm.runtime.medusa_runner import MedusaRunner
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.read_ahead import ReadAhead
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.config_fields import MAX_DRAFT_LENGTH
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.core.policy import RequestPolicy
from mlc_llm.serve.echo_model import EchoPace, echo_pace, is_echo
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.memory_plan import MemoryPlan, ModelSize
from mlc_llm.serve.opening.adapters import adapters_of, with_adapter_room
from mlc_llm.serve.opening.arguments import detect_device, device_kernels
from mlc_llm.serve.opening.bundle import (
    ModelBundle,
    ModelInfo,
    echo_bundle,
    open_models,
    open_without_weights,
    parse_models,
    with_pooling,
)
from mlc_llm.serve.opening.cache_events import publish_events
from mlc_llm.serve.opening.fingerprint import fingerprint
from mlc_llm.serve.opening.memory import look_at_memory, memory_of_device, model_size
from mlc_llm.serve.opening.precision import with_precision
from mlc_llm.serve.opening.runner import AnyRunner, begin_weights, create_runner, kernels_of
from mlc_llm.serve.opening.shares import shards_of
from mlc_llm.serve.opening.vision import with_vision

if TYPE_CHECKING:
    from mlc_llm.serve.core.speculation.drafter import Drafter

_log = logging.getLogger(__name__)


@record()
class OpenEngine:
    """A core, the model behind it, and the config with every limit filled in."""

    core: EngineCore
    bundle: ModelBundle
    config: EngineConfig
    runners: tuple[AnyRunner, ...] = ()
    """What computes in the core: the model, then the draft model. Empty in the echo engine."""
    load_id: int = field(default_factory=itertools.count(1).__next__)
    """Another number each time that a model is opened."""

    @property
    def launches(self) -> int:
        """Of all runners; see `ModelRunner`."""
        return sum(one.launches for one in self.runners)

    @cached_property
    def fingerprint(self) -> str:
        """See `opening/fingerprint.py`."""
        return fingerprint(self.bundle, self.config, self.runners)


def open_engine(
    config: EngineConfig,
    device: str,
    trace: EventTraceRecorder | None = None,
    reading: ReadAhead | None = None,
) -> OpenEngine:
    """Open the models, decide the limits, compile or load the libraries. Raises `UserError`.

    reading: weights whose reading the caller has begun.
    """
    if reading is None:
        with ReadAhead() as own:
            return open_engine(config, device, trace, own)
    if echo := next(filter(is_echo, (config.model, config.model_lib)), None):
        detect_device(device)
        return _open_echo(config, trace, echo_pace(echo))
    config = _on_device(config, device)
    memory = look_at_memory()
    models = parse_models(config.model, config.model_lib, config.additional_models)
    bundles = _bundles(config, models, reading, memory.free)
    bundles[0] = with_vision(with_pooling(bundles[0], config.pooling), config)
    size = _size(bundles, config)
    config = with_adapter_room(with_precision(config, bundles[0]))
    adapters = adapters_of(config, bundles[0])
    room = memory_of_device(config.kernels, shards_of(config)) or memory
    complete, plan, held = room.take(config, size, bundles[0].name)
    _log_plan(complete, plan)
    try:
        pairs = zip(bundles, _configs(complete, models, bundles), strict=True)
        runners = _runners(list(pairs), reading)
        core = _core(runners, bundles[0], complete, trace)
        for name, parts in adapters.items():
            core.adapters.load(name, parts)
        publish_events(core, core.limits, complete)
    except BaseException:
        held.release()
        raise
    room.opened(held, size)
    weakref.finalize(core, held.release)  # its pages go with it
    return OpenEngine(core, bundles[0], complete, runners)


def _runners(
    pairs: list[tuple[ModelBundle, EngineConfig]], reading: ReadAhead
) -> tuple[AnyRunner, ...]:
    """Of all models; that of the first one has the tower of images."""
    first, config = pairs[0]
    tower = None
    if first.vision is not None:
        from mlc_llm.serve.opening.towers import tower_runner

        tower = tower_runner(first.vision, config)
    return tuple(
        create_runner(*pair, reading.take, None if i else tower) for i, pair in enumerate(pairs)
    )


def _on_device(config: EngineConfig, device: str) -> EngineConfig:
    """The config with the kernels of the device. A library that the user names says which they
    are. Raises InvalidField if they do not agree."""
    kernels = config.kernels
    if config.model_lib is not None:
        kernels = kernels_of(Path(config.model_lib)) or kernels
    return replace(config, kernels=device_kernels(device, kernels)[1])


def _log_plan(complete: EngineConfig, plan: MemoryPlan) -> None:
    if complete.verbose:
        _log.info("memory: %s", plan.describe())
        _log.info("precision: %s", complete.precision)
        _log.info("KV pages: %s", complete.kv_cache_dtype)


def _bundles(
    config: EngineConfig, models: list[ModelInfo], reading: ReadAhead, free: int
) -> list[ModelBundle]:
    shards = iter([shards_of(config)])  # the first model is opened first, and it alone has ranks
    bundles = open_models(
        models,
        lambda files: begin_weights(reading, files, free, config.kernels, next(shards, 1)),
        *(config.quantization, config.rope_scaling),
        drafter=config.speculative_mode,
    )
    if config.mode != "interactive":  # nobody's answer is to wait for the prompt of another one
        for bundle in bundles:
            bundle.tokenizer.complete()
    return bundles


def _size(bundles: list[ModelBundle], config: EngineConfig) -> ModelSize:
    """The size of the main model, with that of its draft model if there is one.

    Raises `InvalidField` for a draft model with another number of tokens.
    """
    bundle, *drafts = bundles
    for draft in drafts:
        if bundle.is_encoder or draft.is_encoder:
            words = "an encoder writes no text, and drafts none"
            raise InvalidField("additional_models", draft.name, words)
    kinds = (config.kernels, config.kv_cache_dtype)
    size = model_size(bundle, *kinds, shards_of(config))
    tokens = _tokens(bundle, size)
    for draft in drafts:
        found = model_size(draft, *kinds)
        if draft.is_medusa and found.hidden_size != size.hidden_size:
            words = (
                f"these heads read hidden vectors of {found.hidden_size} numbers and the model's "
                f"have {size.hidden_size}: they are for another model"
            )
            raise InvalidField("additional_models", draft.name, words)
        if _tokens(draft, found) != tokens:
            words = (
                f"it has {_tokens(draft, found)} tokens and the model {tokens}: a draft model "
                "needs the same vocabulary"
            )
            raise InvalidField("additional_models", draft.name, words)
        size = replace(size, draft=found)
    return size


def _tokens(bundle: ModelBundle, size: ModelSize) -> int:
    """How many tokens may be chosen; the model may have more rows than its tokenizer tokens."""
    return min(size.vocab_size, bundle.tokenizer.vocab_size)


def _configs(
    complete: EngineConfig, models: list[ModelInfo], bundles: list[ModelBundle]
) -> list[EngineConfig]:
    """The config for the runner of each model.

    A draft model has the main model's limits, but no drafts beyond its own context window. The main
    model checks its drafts, so it need not compute prompts in one way or the other. It is small, so
    rank 0 computes it alone.
    """
    single = complete.max_single_sequence_length
    assert single
    drafts = [
        replace(
            complete,
            model_lib=info.model_lib,
            max_single_sequence_length=min(single, bundle.context_window),
            precision="exact",
            tensor_parallel_shards=None,
            adapters={},
            max_adapters=None,
        )
        for info, bundle in zip(models[1:], bundles[1:], strict=False)  # a head is no model more
    ]
    return [complete, *drafts]


def _core(
    runners: tuple[AnyRunner, ...],
    bundle: ModelBundle,
    config: EngineConfig,
    trace: EventTraceRecorder | None,
) -> EngineCore:
    """The core of the first runner; the second one, if there is one, makes drafts for it."""
    model = runners[0]
    assert not isinstance(model, MedusaRunner), "heads are of a model"
    return EngineCore(
        model,
        bundle.tokenizer,
        config,
        stop_token_ids=bundle.stop_token_ids,
        trace=trace,
        drafter=_drafter(runners[-1], config.speculative_mode),
        policy=RequestPolicy(writes=bundle.ranking is None),
        images=None if bundle.vision is None else bundle.vision.reader,
    )


def _drafter(runner: AnyRunner, mode: str) -> Drafter | None:
    """None: nobody drafts, or a drafter of the core's own. runner: of whoever drafts."""
    if mode == "eagle":
        from mlc_llm.serve.core.speculation.eagle import EagleDrafter

        assert isinstance(runner, ModelRunner)
        return EagleDrafter(runner)
    if isinstance(runner, MedusaRunner):
        from mlc_llm.serve.core.speculation.medusa import MedusaDrafter

        return MedusaDrafter(runner)
    if mode != "small_draft":
        return None
    from mlc_llm.serve.core.speculation.draft_model import DraftModel

    assert isinstance(runner, ModelRunner)
    runner.undone = MAX_DRAFT_LENGTH  # until the next draft says which of the last one's stay
    return DraftModel(runner)


def _open_echo(
    config: EngineConfig, trace: EventTraceRecorder | None, pace: EchoPace
) -> OpenEngine:
    """The echo engine with the tokenizer of a model, or with one of bytes and no model at all."""
    from mlc_llm.serve.core.mock_echo import echo_config, echo_core

    if config.adapters or config.max_adapters:
        raise InvalidField("adapters", [*config.adapters], "the echo engine has no model to change")
    if shards_of(config) > 1:
        words = "the echo engine has no model to split; leave it out"
        raise InvalidField("tensor_parallel_shards", shards_of(config), words)
    complete = echo_config(config)
    context = complete.max_single_sequence_length
    assert context is not None
    is_bare = is_echo(config.model)
    bundle = echo_bundle(context) if is_bare else open_without_weights(config.model, context)
    bundle = replace(with_pooling(bundle, config.pooling or LAST_TOKEN), ranking=None)
    core = echo_core(bundle.tokenizer, complete, trace, pace)
    publish_events(core, None, complete)
    return OpenEngine(core, bundle, complete)
