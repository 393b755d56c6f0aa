"""The fields of `EngineConfig`: what each may be, and the check of each alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from mlc_llm.errors import InvalidField
from mlc_llm.library.page_format import KV_CACHE_DTYPES
from mlc_llm.pooling import POOLINGS
from mlc_llm.precision import PRECISIONS, Precision
from mlc_llm.protocol import checks
from mlc_llm.protocol.checks import MAX_INT32
from mlc_llm.serve.kv_events.settings import KVEventsConfig

MODES = ("local", "interactive", "server")
KV_STATE_KINDS = ("kv_cache", "rnn_state", "none", "hybrid")
SPECULATIVE_MODES = ("auto", "disable", "small_draft", "prompt_lookup", "eagle", "medusa")
HEAD_MODES = ("medusa",)
"""Those whose drafter reads the hidden vectors of the model."""
DRAFTERS = {
    "small_draft": "the draft model",
    "eagle": "the folder of the head",
    "medusa": "the folder of the heads",
}
"""What the modes are that take an additional model."""
MAX_DRAFT_LENGTH = 16
"""The most draft tokens of one sequence in one step."""
MAX_DRAFTED = 32
"""The most draft tokens of all sequences in one step: to verify more is slow."""

PREFIX_CACHE_MODES = ("radix", "disable")
PREFILL_MODES = ("hybrid", "chunked")
ENGINE_PRECISIONS = (*PRECISIONS, "auto")
PROMPT_PRECISIONS: dict[str, Precision] = {"exact": "exact", "fast": "fast-prompts"}
"""The values of `prompt_precision`, and what they mean."""
PAGE_SIZE = 16
MAX_PATH_CHARS = 4096
MAX_ADAPTERS = 1024
MAX_SHARDS = 32
MAX_ADAPTER_RANK = 1024
NO_MMPROJ = "none"
"""As `mmproj`: the model reads no images."""
MAX_HOSTS = 256
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")


def drafted_rows(sequences: int) -> int:
    """Tokens that are chosen in a step with drafts, at most. As many as without any, if that many
    sequences run: so drafts need memory only where few do."""
    return max(sequences, 1 + MAX_DRAFT_LENGTH)


def if_empty(name: str, default: object) -> object:
    """What a field has if nothing is given."""
    if name == "adapters":
        return {}
    return [] if name in ("additional_models", "allow_image_hosts") else default


def _adapters(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise checks.wrong_type(name, value, "should be a dict of names and paths")
    if len(value) > MAX_ADAPTERS:
        raise InvalidField(name, f"<{len(value)} adapters>", f"at most {MAX_ADAPTERS}")
    return {
        checks.string(f"{name}: a name", one, 256, min_chars=1): _path(f"{name}[{one!r}]", path)
        for one, path in value.items()
    }


def _utilization(name: str, value: object) -> float:
    allowed = "should be above 0 and at most 1"
    share = checks.number(name, value, 0, 1, allowed)
    if share == 0:
        raise InvalidField(name, value, allowed)
    return share


def _window(name: str, value: object) -> int:
    allowed = f"should be -1 (off) or an integer in range [1, {MAX_INT32}]"
    size = checks.integer(name, value, -1, MAX_INT32, allowed)
    if size == 0:
        raise InvalidField(name, value, allowed)
    return size


def _additional_models(name: str, value: object) -> list[str | tuple[str, str]]:
    items = checks.listing(name, value, 16)
    return [_additional_model(f"{name}[{i}]", one) for i, one in enumerate(items)]


def _additional_model(name: str, value: object) -> str | tuple[str, str]:
    if isinstance(value, str):
        return _path(name, value)
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return _path(name, value[0]), _path(name, value[1])
    raise checks.wrong_type(name, value, "should be a path or a pair of a path and a library")


def _hosts(name: str, value: object) -> list[str]:
    items = checks.listing(name, value, MAX_HOSTS)
    found = [checks.string(f"{name}[{i}]", one, 256, min_chars=1) for i, one in enumerate(items)]
    for i, one in enumerate(found):
        if not _HOST.fullmatch(one):
            words = "should be a host, such as example.org or example.org:8443"
            raise InvalidField(f"{name}[{i}]", one, words)
    return found


def _path(name: str, value: object) -> str:
    return checks.string(name, value, MAX_PATH_CHARS, min_chars=1)


def _mapping(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidField(name, value, "should be an object, such as {'rope_type': 'yarn'}")
    return dict(value)


def _integer(low: int, high: int = MAX_INT32) -> Callable[[str, object], int]:
    return lambda name, value: checks.integer(name, value, low, high)


def _one_of(choices: tuple[str, ...]) -> Callable[[str, object], str]:
    return lambda name, value: checks.one_of(name, value, choices)


RULES: dict[str, Callable[[str, object], Any]] = {
    "model": _path,
    "model_lib": _path,
    "additional_models": _additional_models,
    "mode": _one_of(MODES),
    "tensor_parallel_shards": _integer(1, MAX_SHARDS),
    "pipeline_parallel_stages": _integer(1),
    "opt": lambda name, value: checks.string(name, value, 256),
    "gpu_memory_utilization": _utilization,
    "kv_cache_page_size": lambda name, value: checks.integer(
        name, value, PAGE_SIZE, PAGE_SIZE, f"should be {PAGE_SIZE}"
    ),
    "max_num_sequence": _integer(1),
    "max_total_sequence_length": _integer(1),
    "max_single_sequence_length": _integer(1),
    "prefill_chunk_size": _integer(1),
    "sliding_window_size": _window,
    "attention_sink_size": _integer(0),
    "max_history_size": _integer(0),
    "kv_state_kind": _one_of(KV_STATE_KINDS),
    "speculative_mode": _one_of(SPECULATIVE_MODES),
    "spec_draft_length": _integer(0, MAX_DRAFT_LENGTH),
    "spec_tree_width": _integer(1),
    "prefill_time_budget_ms": lambda name, value: checks.number(
        name, value, 1, 60_000, "should be 1 to 60000 milliseconds"
    ),
    "prefix_cache_mode": _one_of(PREFIX_CACHE_MODES),
    "prefix_cache_max_num_recycling_seqs": _integer(-1),
    "kv_events": KVEventsConfig.of,
    "prefill_mode": _one_of(PREFILL_MODES),
    "kv_cache_dtype": _one_of(KV_CACHE_DTYPES),
    "precision": _one_of(ENGINE_PRECISIONS),
    "prompt_precision": _one_of(tuple(PROMPT_PRECISIONS)),
    "kernels": lambda name, value: checks.string(name, value, 32),
    "quantization": lambda name, value: checks.string(name, value, 32),
    "rope_scaling": _mapping,
    "pooling": _one_of(POOLINGS),
    "adapters": _adapters,
    "max_adapters": _integer(0, MAX_ADAPTERS),
    "max_adapter_rank": _integer(1, MAX_ADAPTER_RANK),
    "mmproj": _path,
    "allow_image_hosts": _hosts,
    "verbose": checks.boolean,
}
"""The name of each field -> its check."""
