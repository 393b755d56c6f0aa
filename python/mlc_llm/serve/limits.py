"""How many sequences and tokens an engine holds: inferred from mode, model and memory. Pure.

What the caller gave is obeyed or refused with the numbers; only what is None is inferred.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.serve.config import EngineConfig

DEFAULT_UTILIZATION = 0.85
DEFAULT_PREFILL_CHUNK = 512
LOCAL_MAX_NUM_SEQUENCE = 4
SERVER_MAX_NUM_SEQUENCE = 128
LOCAL_MAX_TOTAL = 8192
RUNTIME_BYTES = 64 * 2**20
"""Interpreter, libraries and what else an engine takes beside the terms below."""


@dataclass(frozen=True)
class ModelSize:
    """The numbers of a model that decide how much memory it takes."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    context_window: int
    weight_bytes: int
    kv_element_bytes: int = 4
    """Of one key or value element in a page."""

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_element_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """Where the memory goes, in bytes."""

    free: int
    """Memory that can be had now."""
    utilization: float
    weights: int
    workspace: int
    kv_per_token: int

    @property
    def fit(self) -> int:
        """Tokens whose keys and values fit beside everything else; not above 0 when none do."""
        budget = int(self.free * self.utilization)
        return (budget - self.weights - self.workspace) // self.kv_per_token

    def describe(self) -> str:
        """Each term in MB."""
        return (
            f"{_mb(self.free)} free, of which {self.utilization:.0%} may be used, "
            f"{_mb(self.weights)} weights, "
            f"{_mb(self.workspace)} workspace, {self.kv_per_token} bytes per token of KV cache: "
            f"{max(self.fit, 0)} tokens fit"
        )


def complete_config(
    config: EngineConfig, size: ModelSize, free_memory: int
) -> tuple[EngineConfig, MemoryPlan]:
    """The config with every limit filled in, and the memory plan behind it.

    Raises `InvalidField` for a given limit that the model or the memory does not allow, `UserError`
    when not even one page fits.
    """
    _refuse_unsupported(config)
    mode = config.mode or "local"
    single = _single(config, size)
    sequences = config.max_num_sequence or _sequences(mode)
    chunk = config.prefill_chunk_size or min(DEFAULT_PREFILL_CHUNK, single)
    plan = MemoryPlan(
        free=free_memory,
        utilization=config.gpu_memory_utilization or DEFAULT_UTILIZATION,
        weights=size.weight_bytes,
        workspace=_workspace(size, chunk, sequences),
        kv_per_token=size.kv_bytes_per_token,
    )
    if plan.fit < config.kv_cache_page_size:
        raise UserError(_insufficient(plan))
    complete = replace(
        config,
        mode=mode,
        gpu_memory_utilization=plan.utilization,
        max_num_sequence=sequences,
        max_single_sequence_length=single,
        max_total_sequence_length=_total(config, mode, single, sequences, plan),
        prefill_chunk_size=chunk,
    )
    return complete, plan


def _refuse_unsupported(config: EngineConfig) -> None:
    for name in ("sliding_window_size", "attention_sink_size"):
        value = getattr(config, name)
        if value not in (None, -1, 0):
            raise InvalidField(name, value, "sliding windows are not supported yet; leave it out")


def _single(config: EngineConfig, size: ModelSize) -> int:
    given = config.max_single_sequence_length
    if given is not None and given > size.context_window:
        raise InvalidField(
            "max_single_sequence_length",
            given,
            f"the model's context window is {size.context_window} tokens",
        )
    return given or size.context_window


def _sequences(mode: str) -> int:
    known = {"interactive": 1, "local": LOCAL_MAX_NUM_SEQUENCE, "server": SERVER_MAX_NUM_SEQUENCE}
    return known[mode]


def _total(config: EngineConfig, mode: str, single: int, sequences: int, plan: MemoryPlan) -> int:
    given = config.max_total_sequence_length
    if given is not None and given > plan.fit:
        raise InvalidField("max_total_sequence_length", given, plan.describe())
    wanted = {
        "interactive": single,
        "local": min(single, LOCAL_MAX_TOTAL),
        "server": sequences * single,
    }
    return given or min(plan.fit, wanted[mode])


def _workspace(size: ModelSize, chunk: int, sequences: int) -> int:
    """Activations of the largest step and logits of all its rows, in 32-bit floats."""
    heads = (2 * size.query_heads + 2 * size.kv_heads) * size.head_dim
    activations = chunk * (4 * size.hidden_size + 2 * size.intermediate_size + heads)
    logits = 4 * sequences * size.vocab_size
    return 4 * (activations + logits) + RUNTIME_BYTES


def _insufficient(plan: MemoryPlan) -> str:
    return (
        f"Insufficient memory: {plan.describe()}. Free some memory, raise gpu_memory_utilization, "
        "take a smaller or more quantised model, or lower prefill_chunk_size or max_num_sequence"
    )


def _mb(count: int) -> str:
    return f"{count / 2**20:.0f} MB"
