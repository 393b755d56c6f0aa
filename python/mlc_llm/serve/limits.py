"""How many sequences and tokens an engine holds: inferred from mode, model and memory. Pure.

What the caller gave is obeyed or refused with the numbers; only what is None is inferred.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.runtime.batch import SINK_BLOCK, Window
from mlc_llm.serve.config import MAX_DRAFTED, EngineConfig

DEFAULT_UTILIZATION = 0.85
DEFAULT_PREFILL_CHUNK = 512
LOCAL_MAX_NUM_SEQUENCE = 4
SERVER_MAX_NUM_SEQUENCE = 128
LOCAL_MAX_TOTAL = 8192
STREAM_LENGTH = 2**24
"""Tokens of one sequence where a window lets it outgrow the model's context, unless the config
says: nothing is reserved for them."""
RUNTIME_BYTES = 64 * 2**20
"""Machine code, stacks of threads, page tables, requests: 15 MB measured, and room to grow."""


@dataclass(frozen=True)
class KVSize:
    """Keys and values of a group of layers."""

    layers: int
    elements: int
    """Of a token: keys and values of all layers of the group."""
    element_bytes: int = 4
    window: int | None = None
    """Tokens that the model lets a token see; None: all before it."""

    @property
    def bytes_per_token(self) -> int:
        return self.elements * self.element_bytes


@dataclass(frozen=True)
class ModelSize:
    """The numbers of a model that decide how much memory it takes."""

    groups: tuple[KVSize, ...]
    """Of each group of layers."""
    query_width: int
    kv_width: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    context_window: int
    weight_bytes: int
    """As the kernels hold them, not as the file does."""
    ropes: int = 1
    """Rotary embeddings, each with a table of its own."""
    sliding_window: int = -1
    """Of the model's own config; -1: none."""
    attention_sinks: int = 0
    draft: ModelSize | None = None
    """The model that guesses tokens for this one, where there is one; it has as many pages."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the groups whose pages grow with a sequence as far as those of any."""
        own = sum(g.bytes_per_token for g in self.groups if g.window == self.largest_window)
        return own + (0 if self.draft is None else self.draft.kv_bytes_per_token)

    @property
    def largest_window(self) -> int | None:
        """None: some layers see everything."""
        windows = [group.window for group in self.groups]
        return None if None in windows else max(size for size in windows if size is not None)


@dataclass(frozen=True)
class MemoryPlan:
    """Where the memory goes, in bytes; Python's integers, so nothing overflows."""

    free: int
    """Memory that can be had now."""
    utilization: float
    weights: int
    activations: int
    """Of the largest step."""
    logits: int
    """Of all sequences in one step, with the sampler's scratch and copies for log-probabilities."""
    rope: int
    """Sines and cosines up to the longest sequence."""
    kv_per_token: int
    page_size: int
    runtime: int = RUNTIME_BYTES
    windowed: int = 0
    """KV pages of layers that see less than others do: as many as all sequences can need."""
    draft: int = 0
    """Weights and workspace of the draft model."""
    promised: str = ""
    """What is not counted as free, and whose it is, in words."""

    @property
    def workspace(self) -> int:
        """All but the weights and the KV cache."""
        return self.activations + self.logits + self.rope + self.runtime

    @property
    def budget(self) -> int:
        """What the engine may use."""
        return int(self.free * self.utilization)

    @property
    def fit(self) -> int:
        """Tokens, in whole pages, that fit beside everything else; not above 0 when none do."""
        page = self.page_size * self.kv_per_token
        return (self.budget - self.total(0)) // page * self.page_size

    def total(self, tokens: int) -> int:
        """Everything, with a KV cache for so many tokens."""
        pages = -(-tokens // self.page_size)
        fixed = self.weights + self.draft + self.workspace + self.windowed
        return fixed + pages * self.page_size * self.kv_per_token

    def describe(self) -> str:
        """Each term in MB."""
        promised = f" ({self.promised})" * bool(self.promised)
        return (
            f"{_mb(self.free)} free{promised}, of which {self.utilization:.0%} may be used, "
            f"{_mb(self.weights)} weights, {f'{_mb(self.draft)} draft model, ' * bool(self.draft)}"
            f"{_mb(self.workspace)} workspace, {self.kv_per_token} bytes per token of KV cache: "
            f"{max(self.fit, 0)} tokens fit"
        )


def complete_config(
    config: EngineConfig, size: ModelSize, free_memory: int, promised: str = ""
) -> tuple[EngineConfig, MemoryPlan]:
    """The config with every limit filled in, and the memory plan behind it.

    promised: says what is left out of `free_memory`.

    Raises `InvalidField` for a given limit that the model or the memory does not allow, `UserError`
    when not even one page fits.
    """
    config = with_model_window(config, size)
    asked = infer_limits(config, size)
    plan = plan_memory(asked, size, free_memory, promised)
    if plan.fit < least_tokens(config):
        raise _too_large(config, size, plan)
    held = _held(asked, _single(asked), asked.prefill_chunk_size or 0)
    wanted = {
        "interactive": held,
        "local": held if config.max_single_sequence_length else min(held, LOCAL_MAX_TOTAL),
        "server": (asked.max_num_sequence or 1) * held,
    }
    total = config.max_total_sequence_length or min(plan.fit, wanted[asked.mode or "local"])
    return replace(asked, max_total_sequence_length=total), plan


def infer_limits(config: EngineConfig, size: ModelSize) -> EngineConfig:
    """The config with every limit but `max_total_sequence_length`, which the memory decides.

    Raises `InvalidField` for what the model, or another given limit, does not allow.
    """
    config = with_model_window(config, size)
    _refuse_windows(config)
    _refuse_contradictions(config, size)
    mode = config.mode or "local"
    single = config.max_single_sequence_length or _longest(config, size)
    longest = min(single, config.max_total_sequence_length or single)
    return replace(
        config,
        mode=mode,
        gpu_memory_utilization=config.gpu_memory_utilization or DEFAULT_UTILIZATION,
        max_num_sequence=config.max_num_sequence or sequences_of(mode),
        max_single_sequence_length=single,
        prefill_chunk_size=config.prefill_chunk_size or min(DEFAULT_PREFILL_CHUNK, longest),
    )


def plan_memory(
    asked: EngineConfig, size: ModelSize, free_memory: int, promised: str = ""
) -> MemoryPlan:
    """What the limits cost. `asked` comes from `infer_limits`."""
    assert asked.prefill_chunk_size and asked.max_num_sequence and asked.gpu_memory_utilization
    drafts = 0 if asked.speculative_mode == "disable" else MAX_DRAFTED
    draft = None if size.draft is None else plan_memory(asked, size.draft, free_memory)
    return MemoryPlan(
        free=free_memory,
        utilization=asked.gpu_memory_utilization,
        weights=size.weight_bytes,
        activations=_activations(size, asked.prefill_chunk_size, window_of(asked) is not None),
        # The logits, the sampler's scratch and copies of raw rows; masks and edits of a step.
        logits=12 * (asked.max_num_sequence + drafts) * size.vocab_size + 16 * size.vocab_size,
        # The table doubles as it grows, so it may be twice as long as what needs it.
        rope=2 * 4 * size.ropes * size.head_dim * min(_single(asked), size.context_window),
        kv_per_token=size.kv_bytes_per_token,
        page_size=asked.kv_cache_page_size,
        windowed=_windowed(asked, size),
        draft=0 if draft is None else draft.total(0) - draft.runtime,
        promised=promised,
    )


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


def least_tokens(config: EngineConfig) -> int:
    """Tokens that have to fit, or the config is refused: those that were given, or one page."""
    if config.max_total_sequence_length:
        return config.max_total_sequence_length
    single = config.max_single_sequence_length
    return _held(config, single) if single else config.kv_cache_page_size


def with_model_window(config: EngineConfig, size: ModelSize) -> EngineConfig:
    """The config with the model's own window where it leaves that open."""
    if config.sliding_window_size is not None or size.sliding_window < 1:
        return config
    sinks = config.attention_sink_size
    return replace(
        config,
        sliding_window_size=size.sliding_window,
        attention_sink_size=size.attention_sinks if sinks is None else sinks,
    )


def sequences_of(mode: str) -> int:
    """Answers that a mode runs at a time, where `max_num_sequence` says nothing."""
    known = {"interactive": 1, "local": LOCAL_MAX_NUM_SEQUENCE, "server": SERVER_MAX_NUM_SEQUENCE}
    return known[mode]


def window_of(config: EngineConfig) -> Window | None:
    """What a token sees, if not everything before it."""
    size = config.sliding_window_size
    return None if size in (None, -1) else Window(size, config.attention_sink_size or 0)


def _held(config: EngineConfig, single: int, chunk: int = 0) -> int:
    """Tokens of a sequence of `single` that are in pages at once, with `chunk` new ones."""
    window = window_of(config)
    if window is None:
        return single
    page = config.kv_cache_page_size
    return min(single, window.most_pages(page) * page + chunk)


def _refuse_windows(config: EngineConfig) -> None:
    size, sinks = config.sliding_window_size, config.attention_sink_size
    if window_of(config) is None and sinks:
        raise InvalidField("attention_sink_size", sinks, "it needs a sliding_window_size")
    if window_of(config) is not None and config.speculative_mode != "disable":
        words = f"not together with speculative_mode {config.speculative_mode!r}; leave one out"
        raise InvalidField("sliding_window_size", size, words)


def _refuse_contradictions(config: EngineConfig, size: ModelSize) -> None:
    single, total = config.max_single_sequence_length, config.max_total_sequence_length
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
    """Whether a sequence may be longer than the context that the model was trained on."""
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


def _activations(size: ModelSize, chunk: int, has_window: bool) -> int:
    """32-bit floats of the hidden state and of what is alive beside it in the larger half-layer.

    Attention: input, query, keys and values, rotated query, result. Feed-forward: gate and up,
    twice where they have to be joined first. With a window: queries for sinks, rows of rope.
    """
    query, kv = size.query_width, size.kv_width
    attention = size.hidden_size + (4 if has_window else 3) * query + 2 * kv
    largest = max(attention, 4 * size.intermediate_size)
    rope = (2 if has_window else 1) * size.head_dim
    return 4 * chunk * (size.hidden_size + rope + largest)


def _too_large(config: EngineConfig, size: ModelSize, plan: MemoryPlan) -> UserError:
    """Names the given limit without which it would fit, if there is one."""
    words = f"Insufficient memory: {plan.describe()}"
    for name in _COSTLY:
        given = getattr(config, name)
        if given is None:
            continue
        nothing: dict[str, Any] = {name: None}
        without = replace(config, **nothing)
        less = plan_memory(infer_limits(without, size), size, plan.free, plan.promised)
        if less.fit >= least_tokens(without):
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


def _mb(count: int) -> str:
    return f"{count / 2**20:.0f} MB"
