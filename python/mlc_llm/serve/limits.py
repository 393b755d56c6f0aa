"""How many sequences and tokens an engine holds: inferred from mode, model and memory. Pure.

A limit that the caller gives is obeyed, or refused with the numbers. Only what is None is inferred.
"""

from __future__ import annotations

from dataclasses import replace

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.runtime.limits import (
    DRAFT_STATES,
    MOST_REPEATED,
    NO_ADAPTERS,
    RANK_STEP,
    SINK_BLOCK,
    AdapterLimits,
    Window,
    score_rows,
    state_bases,
    state_slots,
)
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.config_fields import drafted_rows
from mlc_llm.serve.memory_plan import MemoryPlan, ModelSize

DEFAULT_UTILIZATION = 0.85
DEFAULT_PREFILL_CHUNK = 512
LOCAL_MAX_NUM_SEQUENCE = 4
SERVER_MAX_NUM_SEQUENCE = 128
LOCAL_MAX_TOTAL = 8192
MOST_TOKENS = 2**31 - 1
"""Of all pages: slots are counted in 32 bits."""
STREAM_LENGTH = 2**24
"""Most tokens of a sequence that a window lets outgrow the model's context, unless the config says
how many. Nothing is reserved for them."""


def longest_sequence(single: int, capacity: int) -> int:
    """The most tokens that a prompt and its answer have together; a prompt has fewer.

    single: the limit for one sequence. capacity: the tokens of one sequence for which the pages
    are enough; the last token of a sequence is never computed, so it needs no place in a page.
    """
    return min(single, capacity + 1)


def complete_config(
    config: EngineConfig, size: ModelSize, free_memory: int, promised: str = ""
) -> tuple[EngineConfig, MemoryPlan]:
    """The config with every limit filled in, and the memory plan behind it.

    promised: the memory that `free_memory` leaves out, in words.

    Raises `InvalidField` for a given limit that the model or the memory does not allow, `UserError`
    when not even one page fits.
    """
    config = with_model_window(config, size)
    asked = infer_limits(config, size)
    plan = plan_memory(asked, size, free_memory, promised)
    if plan.fit < _least(config, asked, size):
        raise _too_large(config, size, plan)
    held = _held(asked, _single(asked), asked.prefill_chunk_size or 0)
    wanted = {
        "interactive": held,
        "local": held if config.max_single_sequence_length else min(held, LOCAL_MAX_TOTAL),
        "server": (asked.max_num_sequence or 1) * held,
    }
    if size.is_encoder:
        return replace(asked, max_total_sequence_length=_scratch_tokens(asked)), plan
    inferred = min(plan.fit, _most_tokens(size), wanted[asked.mode or "local"])
    total = config.max_total_sequence_length or inferred
    return replace(asked, max_total_sequence_length=total), plan


def _most_tokens(size: ModelSize) -> int:
    """Tokens whose pages the kernels of the model, and of its draft model, can count."""
    found = [size.most_tokens, None if size.draft is None else size.draft.most_tokens]
    return min([one for one in found if one is not None], default=MOST_TOKENS)


def infer_limits(config: EngineConfig, size: ModelSize) -> EngineConfig:
    """The config with every limit except `max_total_sequence_length`, which the memory decides.

    Raises `InvalidField` for a limit that the model, or another given limit, does not allow.
    """
    config = with_model_window(config, size)
    config = _with_drafter(config, size)
    _refuse_windows(config)
    _refuse_states(config, size)
    _refuse_for_encoder(config, size)
    _refuse_without_pages(config, size)
    _refuse_contradictions(config, size)
    mode = config.mode or "local"
    single = config.max_single_sequence_length or _longest(config, size)
    longest = min(single, config.max_total_sequence_length or single)
    bound = max if size.is_encoder else min  # an encoder computes a text in one step
    sequences = SERVER_MAX_NUM_SEQUENCE if size.is_encoder else sequences_of(mode)
    sequences = config.max_num_sequence or sequences
    chunk = config.prefill_chunk_size or bound(DEFAULT_PREFILL_CHUNK, longest)
    asked = replace(
        config,
        mode=mode,
        gpu_memory_utilization=config.gpu_memory_utilization or DEFAULT_UTILIZATION,
        max_num_sequence=sequences,
        max_single_sequence_length=single,
        prefill_chunk_size=_with_image(config, size, chunk, sequences),
    )
    _refuse_total_of_encoder(asked, size)
    return asked


def _with_image(config: EngineConfig, size: ModelSize, chunk: int, sequences: int) -> int:
    """The tokens of a step: an image fits into one, beside a token of each sequence that decodes.
    Raises InvalidField if the config says less."""
    least = size.whole_image + sequences - 1 if size.whole_image else 0
    if config.prefill_chunk_size is not None and chunk < least:
        words = f"an image of {size.whole_image} tokens is computed in one step, beside a token of "
        words += f"each other sequence: give at least {least}, or mmproj 'none'"
        raise InvalidField("prefill_chunk_size", chunk, words)
    return max(chunk, least)


def plan_memory(
    asked: EngineConfig, size: ModelSize, free_memory: int, promised: str = ""
) -> MemoryPlan:
    """What the limits cost. `asked` comes from `infer_limits`."""
    assert asked.prefill_chunk_size and asked.max_num_sequence and asked.gpu_memory_utilization
    chosen = asked.max_num_sequence
    if asked.speculative_mode != "disable":
        chosen = drafted_rows(chosen)
    alone = replace(asked, adapters={}, max_adapters=None)
    draft = None if size.draft is None else plan_memory(alone, size.draft, free_memory)
    has_window, limits = window_of(asked) is not None, adapter_limits(asked)
    return MemoryPlan(
        free=free_memory,
        utilization=asked.gpu_memory_utilization,
        weights=size.weight_bytes,
        activations=size.activations(asked.prefill_chunk_size, has_window=has_window),
        logits=0 if size.is_encoder else size.logits(chosen + score_rows(size.vocab_size)),
        rope=size.rope(_single(asked)),
        kv_per_token=size.kv_bytes_per_token,
        page_size=asked.kv_cache_page_size,
        runtime=size.runtime,
        repeated=size.repeated(min(asked.max_num_sequence, MOST_REPEATED)),
        windowed=_windowed(asked, size),
        states=_states(asked, size),
        adapters=size.adapter_bytes * limits.slots * limits.rank,
        tower=size.tower_bytes,
        draft=0 if draft is None else draft.total(0) - draft.runtime,
        promised=promised,
    )


def draft_states_of(config: EngineConfig) -> int:
    """Draft tokens in a step whose states are kept, if the model has any. `auto` is decided."""
    return 0 if config.speculative_mode == "disable" else DRAFT_STATES


def adapter_limits(config: EngineConfig) -> AdapterLimits:
    """Of a config in which the number and the rank of adapters are decided."""
    if not config.max_adapters:
        return NO_ADAPTERS
    rank = config.max_adapter_rank or RANK_STEP
    return AdapterLimits(config.max_adapters, -(-rank // RANK_STEP) * RANK_STEP)


def _scratch_tokens(asked: EngineConfig) -> int:
    """Places of the pages in which an encoder has the keys and values of a layer: each text of a
    step begins a page."""
    assert asked.prefill_chunk_size and asked.max_num_sequence
    return asked.prefill_chunk_size + asked.kv_cache_page_size * asked.max_num_sequence


def least_tokens(config: EngineConfig) -> int:
    """Tokens that have to fit, or the config is refused: those that were given, or one page."""
    if config.max_total_sequence_length:
        return config.max_total_sequence_length
    single = config.max_single_sequence_length
    return _held(config, single) if single else config.kv_cache_page_size


def _least(config: EngineConfig, asked: EngineConfig, size: ModelSize) -> int:
    """The same, of any model. asked: the config behind `infer_limits`."""
    return _scratch_tokens(asked) if size.is_encoder else least_tokens(config)


def with_model_window(config: EngineConfig, size: ModelSize) -> EngineConfig:
    """The config, with the model's own window if it leaves the window open."""
    if config.sliding_window_size is not None or size.sliding_window < 1:
        return config
    sinks = config.attention_sink_size
    return replace(
        config,
        sliding_window_size=size.sliding_window,
        attention_sink_size=size.attention_sinks if sinks is None else sinks,
    )


def sequences_of(mode: str) -> int:
    """Answers that a mode runs at a time, if `max_num_sequence` is None."""
    known = {"interactive": 1, "local": LOCAL_MAX_NUM_SEQUENCE, "server": SERVER_MAX_NUM_SEQUENCE}
    return known[mode]


def window_of(config: EngineConfig) -> Window | None:
    """What a token sees; None: everything before it."""
    size = config.sliding_window_size
    return None if size in (None, -1) else Window(size, config.attention_sink_size or 0)


def _held(config: EngineConfig, single: int, chunk: int = 0) -> int:
    """Tokens of a sequence of `single` that are in pages at once, with `chunk` new ones."""
    window = window_of(config)
    if window is None:
        return single
    page = config.kv_cache_page_size
    return min(single, window.most_pages(page) * page + chunk)


def _windowed(asked: EngineConfig, size: ModelSize) -> int:
    """Bytes of the pages of layers whose window is smaller than the largest."""
    assert asked.prefill_chunk_size and asked.max_num_sequence
    page, total = asked.kv_cache_page_size, 0
    for group in size.groups:
        if group.window is None or group.window == size.largest_window:
            continue
        pages = Window(group.window).pool_pages(
            page, asked.max_num_sequence, asked.prefill_chunk_size
        )
        total += pages * page * group.bytes_per_token
    return total


def _states(asked: EngineConfig, size: ModelSize) -> int:
    """Bytes of the states of recurrent layers."""
    assert asked.max_num_sequence
    held, one = (asked.max_num_sequence, draft_states_of(asked)), size.states
    return state_slots(*held, one.chunk) * one.slot + state_bases(*held) * one.base if one else 0


def _with_drafter(config: EngineConfig, size: ModelSize) -> EngineConfig:
    """The config, with the drafter of the text so far where nobody else is asked for and it can
    draft. A device that repeats steps begins them early, which saves more."""
    if config.speculative_mode != "auto":
        return config
    keeps_all = window_of(config) is None and size.states is None and not size.is_encoder
    is_plain = not size.repeat_bytes and config.tensor_parallel_shards in (None, 1)
    drafts = keeps_all and is_plain
    return replace(config, speculative_mode="prompt_lookup" if drafts else "disable")


def _refuse_windows(config: EngineConfig) -> None:
    size, sinks = config.sliding_window_size, config.attention_sink_size
    if window_of(config) is None and sinks:
        raise InvalidField("attention_sink_size", sinks, "it needs a sliding_window_size")
    if window_of(config) is not None and config.speculative_mode != "disable":
        words = f"not together with speculative_mode {config.speculative_mode!r}; leave one out"
        raise InvalidField("sliding_window_size", size, words)


def _refuse_states(config: EngineConfig, size: ModelSize) -> None:
    """Layers that keep a state forget tokens only where the state is kept."""
    words = None
    if size.draft is not None and size.draft.states:
        words = "the draft model keeps states, which cannot be rolled back; use 'disable'"
    elif size.states and config.speculative_mode == "eagle":
        words = "this model keeps states, which its head does not know; use 'prompt_lookup'"
    if words is not None:
        raise InvalidField("speculative_mode", config.speculative_mode, words)
    if window_of(config) is not None and size.states:
        words = "this model keeps states, which see every token; use -1"
        raise InvalidField("sliding_window_size", config.sliding_window_size, words)


def _refuse_for_encoder(config: EngineConfig, size: ModelSize) -> None:
    """An encoder computes a whole text in a step, and keeps nothing of it."""
    if not size.is_encoder:
        return
    single = config.max_single_sequence_length or size.context_window
    chunk, words = config.prefill_chunk_size, "this model is an encoder"
    if chunk is not None and chunk < single:
        words += f", which computes a text in one step: at least {single}, the longest text"
        raise InvalidField("prefill_chunk_size", chunk, words)
    if window_of(config) is not None:
        raise InvalidField("sliding_window_size", config.sliding_window_size, f"{words}; use -1")
    if config.max_adapters:
        words += "; merge adapters into it (convert_weight --lora)"
        raise InvalidField("max_adapters", config.max_adapters, words)
    if config.speculative_mode != "disable":
        raise InvalidField("speculative_mode", config.speculative_mode, f"{words}; use 'disable'")


def _refuse_without_pages(config: EngineConfig, size: ModelSize) -> None:
    """Nothing is kept in pages that could be kept as bytes."""
    if config.kv_cache_dtype == "auto" or (size.has_pages and not size.is_encoder):
        return
    why = "is an encoder, which keeps nothing" if size.is_encoder else "has no attention"
    words = f"this model {why}; use 'auto'"
    raise InvalidField("kv_cache_dtype", config.kv_cache_dtype, words)


def _refuse_total_of_encoder(asked: EngineConfig, size: ModelSize) -> None:
    """It has no choice but the one of `complete_config`."""
    total = asked.max_total_sequence_length
    if size.is_encoder and total not in (None, _scratch_tokens(asked)):
        words = "this model is an encoder, which keeps no tokens; leave it out"
        raise InvalidField("max_total_sequence_length", total, words)


def _refuse_contradictions(config: EngineConfig, size: ModelSize) -> None:
    single, total = config.max_single_sequence_length, config.max_total_sequence_length
    if total is not None and total > _most_tokens(size):
        words = f"the pages of this model are counted up to {_most_tokens(size)} tokens"
        raise InvalidField("max_total_sequence_length", total, words)
    if single is None:
        return
    if single > size.context_window and not _is_endless(config, size):
        words = f"the model's context window is {size.context_window} tokens"
        words += f"; {_what_endless_takes(config)}"
        raise InvalidField("max_single_sequence_length", single, words)
    if total is not None and _held(config, single) > total:
        words = f"one sequence cannot be longer than max_total_sequence_length, {total}"
        raise InvalidField("max_single_sequence_length", single, words)


def _is_endless(config: EngineConfig, size: ModelSize) -> bool:
    """True if a sequence may be longer than the context that the model was trained on."""
    window = window_of(config)
    return window is not None and window.far < size.context_window


def _longest(config: EngineConfig, size: ModelSize) -> int:
    return STREAM_LENGTH if _is_endless(config, size) else size.context_window


def _what_endless_takes(config: EngineConfig) -> str:
    window = window_of(config)
    if window is None:
        return "with a sliding_window_size a sequence can be longer"
    return (
        f"longer needs a sliding window which, its sinks rounded up to whole blocks of "
        f"{SINK_BLOCK} included, is not larger than that; here it is {window.far + 1}"
    )


def _single(config: EngineConfig) -> int:
    assert config.max_single_sequence_length
    return config.max_single_sequence_length


def _too_large(config: EngineConfig, size: ModelSize, plan: MemoryPlan) -> UserError:
    """Names the given limit without which it would fit, if there is one."""
    words = f"Insufficient memory: {plan.describe()}"
    for name in _COSTLY:
        given = getattr(config, name)
        if given is None:
            continue
        without = EngineConfig.from_mapping({**vars(config), name: None})
        asked = infer_limits(without, size)
        less = plan_memory(asked, size, plan.free, plan.promised)
        if less.fit >= _least(without, asked, size):
            return InvalidField(name, given, words)
    return UserError(
        f"{words}. Free some memory, raise gpu_memory_utilization, take a smaller or more "
        "quantised model, or lower prefill_chunk_size or max_num_sequence"
    )


_COSTLY = (
    "max_total_sequence_length",
    "max_single_sequence_length",
    "prefill_chunk_size",
    "max_num_sequence",
    "gpu_memory_utilization",
)
