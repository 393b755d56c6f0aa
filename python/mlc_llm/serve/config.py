"""`EngineConfig`: all settings of an engine, as one frozen value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field, fields
from typing import Any, Literal

from mlc_llm.errors import InvalidField
from mlc_llm.pooling import Pooling
from mlc_llm.protocol import checks
from mlc_llm.protocol.field_docs import with_field_docs
from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.record import record
from mlc_llm.serve.config_fields import DRAFTERS, PAGE_SIZE, PROMPT_PRECISIONS, RULES, if_empty
from mlc_llm.serve.kv_events.settings import KVEventsConfig

EngineMode = Literal["local", "interactive", "server"]


@with_field_docs
@record(kw_only=True)
class EngineConfig:
    """Settings of one engine. None means "infer from the mode, the model and the memory".

    A value is used or refused, never changed. The constructor raises `InvalidField` for a value
    that is out of range or that this version cannot do yet. In a field whose default is not None,
    None means the default. The engine writes its own `model`, `model_lib`, `additional_models` and
    `mode` into a copy (`dataclasses.replace`), never into this object.
    """

    model: str | None = None
    """The engine has an argument `model`; leave it out here. For `reload`: another model."""
    model_lib: str | None = None
    """The engine has an argument `model_lib`; leave it out here."""
    additional_models: list[str | tuple[str, str]] = field(default_factory=list)
    """The draft model of `small_draft`, or the folder of heads of `eagle` or `medusa`: a path, or a
    path and its library."""
    mode: EngineMode | None = None
    """The engine has an argument `mode`; leave it out here. It sets the limits below that are None.
    local: 4 answers run at a time and share the pages of one context, at most of 8192 tokens; other
    requests wait. interactive: 1 answer at a time. server: 128 answers at a time, and most of the
    free memory for their pages."""
    tensor_parallel_shards: int | None = None
    """Ranks that compute the model together, 1 to 32: processes on this machine, each with a share
    of the weights and of the KV cache. On CPUs each has an equal share of the cores (or
    MLC_NUM_THREADS each): that is for machines with several sockets. On GPUs each has a GPU of its
    own (needs `pip install 'mlc-llm[cuda-ranks]'`). At most as many as the model has heads of keys.
    Not for models with experts, recurrent layers or encoders, and not with adapters or model_lib.
    None is 1."""
    pipeline_parallel_stages: int | None = None
    """At least 1. This version accepts only 1."""
    opt: str | None = None
    """This version does not support it: only None is allowed."""
    gpu_memory_utilization: float | None = None
    """The share of the free memory to use, above 0 to 1. None is 0.85."""
    kv_cache_page_size: int = PAGE_SIZE
    """Tokens of a page: 16 to 16."""
    max_num_sequence: int | None = None
    """Answers that run at the same time (sequences that have pages), at least 1."""
    max_total_sequence_length: int | None = None
    """Tokens that the pages of all sequences can hold together, at least 1."""
    max_single_sequence_length: int | None = None
    """The most tokens of a prompt and its answer together, at least 1. None is the context window
    of the model. With a sliding window that allows more, None is 2^24; no memory is reserved for
    them."""
    prefill_chunk_size: int | None = None
    """The most tokens of one step, at least 1. None is 512, or the most tokens of one sequence if
    that is less."""
    sliding_window_size: int | None = None
    """How many tokens back a token sees, itself included; it sees the sinks too. At least -1 and
    not 0. -1 turns it off, None is the window of the model. A sequence may then be longer than the
    context window of the model, but tokens that have left the window are forgotten. For this, the
    window plus the sinks (rounded up to a multiple of 128) must not be longer than the context
    window. Not possible with speculative decoding or pinned prompts. The prefix cache then reuses
    a sequence as a whole or not at all."""
    attention_sink_size: int | None = None
    """How many first tokens of a sequence each token always sees, at least 0. Their distance is
    never more than the window and the blocks of the sinks. None is the number of the model if the
    window is the model's too, else 0. With 0, a text stops to make sense when its first tokens have
    left the window. 4 are enough in most cases."""
    max_history_size: int | None = None
    """At least 0: None, 0 or 1, which mean the same: of a sequence's recurrent layers one state. In
    this version earlier ones are kept where the prefix cache and draft tokens need them, and not as
    a history."""
    kv_state_kind: Literal["kv_cache", "rnn_state", "none", "hybrid"] | None = None
    """None and `kv_cache` are the same, and nothing else is allowed: what a model keeps, its file
    says."""
    speculative_mode: Literal[
        "auto", "disable", "small_draft", "prompt_lookup", "eagle", "medusa"
    ] = "auto"
    """The drafter: who makes draft tokens, which the model verifies. Tokens are those of plain
    decoding, whoever drafts. `prompt_lookup` looks for an earlier place of the last tokens in the
    text and takes the tokens that followed there; where that does not pay, it looks less and less.
    `auto` is `prompt_lookup` on a CPU, and `disable` on other devices, with several ranks, with a
    sliding window, for encoders and for models with recurrent layers. `small_draft` is a smaller
    model with the same vocabulary. `medusa` are heads that were trained for the model: each drafts
    one token from the model's last hidden vector. `eagle` is a head that was trained for the model
    (EAGLE-1 or EAGLE-3): a decoder layer that drafts one token after the other from the model's
    vectors of all tokens; where the last two tokens came up before, what followed there is taken,
    as `prompt_lookup` does. With it and `fast-prompts` the first token of an answer is chosen a
    little less exactly than without: the last layer computes the whole prompt with 8 bits. Heads
    are a folder of config.json and safetensors, as their authors' code writes it. A model with
    recurrent layers has at most 8 draft tokens in a step, for each of which it keeps a state
    (`mlc_llm fit` counts them); it takes no `eagle` head, and drafts for no other model."""
    spec_draft_length: int = 0
    """The most draft tokens of a sequence in one step, 0 to 16. 0 learns the best number. There
    are no draft tokens while plain steps are faster."""
    spec_tree_width: int = 1
    """At least 1. This version accepts only 1: draft tokens form a chain."""
    prefix_cache_mode: Literal["radix", "disable"] = "radix"
    """`radix` keeps sequences that have ended. A prompt that begins like one of them computes only
    the rest of its tokens."""
    prefix_cache_max_num_recycling_seqs: int | None = None
    """The most ended sequences that are kept, at least -1. None is max_num_sequence, 0 keeps none,
    -1 sets no limit."""
    kv_events: KVEventsConfig | None = None
    """Where the engine says what its prefix cache holds, for routers that send a prompt where its
    beginning is computed already: an object with `endpoint`. None: nowhere. Not possible without a
    prefix cache, with a sliding window or with recurrent layers."""
    prefill_mode: Literal["hybrid", "chunked"] = "hybrid"
    """`hybrid`: a step computes prompts and running answers together. `chunked`: prompts come
    first, in steps of their own."""
    prefill_time_budget_ms: float = 50.0
    """What each waiting prompt may add to the time of a step in which answers run (hybrid mode), in
    milliseconds, 1 to 60000. A single prompt hardly delays the answers that run, and a crowd of
    prompts fills the steps."""
    precision: Literal["exact", "fast-prompts", "fast", "auto"] | None = None
    """How exactly the model is computed. `exact`: activations have 16 bits, which gives the answers
    of float32. `fast-prompts`: the tokens of prompts have 8 bits where that costs the least; a text
    then also depends on which of its tokens were a prompt and which the prefix cache had from an
    answer. `fast`: all tokens have 8 bits, on a CPU but for what becomes keys and values. With
    weights of 16-bit floats, and with AMX, they are bfloat16. With AMX `fast` becomes
    `fast-prompts`, since exact answers are the faster ones there (not for encoders and models with
    recurrent layers). A token's bits never depend on other requests. What they cost on a model,
    `mlc_llm fit --precisions` measures. `auto`: the fastest whose answers differ from those of
    `exact` by a mean KL divergence of at most 1e-4; it is measured when the model is opened for the
    first time. Kernels without faster ways (avx2, portable; of floats vnni too) refuse them. None:
    what `prompt_precision` says, else `exact`."""
    prompt_precision: Literal["exact", "fast"] | None = None
    """The older name of `precision`: 'fast' means `fast-prompts`. If both are given they have to
    agree. None in a config that was made: `precision` says it."""
    kv_cache_dtype: Literal["auto", "int8"] = "auto"
    """How keys and values are kept in KV pages. `auto`: as numbers that lose nothing that is seen,
    float16 where the kernels have it, else float32. `int8`: 32 elements of a head share a scale,
    8.5 bits an element, which needs about half the memory and half the reading. Texts change a
    little; a token's bits still do not depend on other requests. A draft model has pages of the
    same kind. Not possible for encoders, and for models without attention."""
    kernels: str | None = None
    """Which kernels compute: amx, vnni-bf16, vnni, avx-vnni, avx2, i8mm, dotprod, portable, or
    reference (plain float32, slow, only to compare with). None: the environment variable
    MLC_LLM_KERNELS, else the fastest kernels that this machine can run."""
    quantization: str | None = None
    """The model's matrices are quantised when they are packed: `q4f16_1`, `q4_0` and others, which
    an error lists. None: they stay as the files have them. A draft model always stays so, and draft
    heads have a field `quantization` in their own config.json."""
    rope_scaling: Mapping[str, object] | None = None
    """The rotary embedding is scaled for longer texts, with the fields that config.json has for it:
    `{"rope_type": "yarn", "factor": 4.0}`; `linear`, `llama3` and `longrope` too. The factor is of
    `original_max_position_embeddings`, or of what the model's files call its context. None: as the
    files say. A draft model always stays so."""
    pooling: Pooling | None = None
    """How embeddings are made of the hidden vectors of a text's tokens: `last_token`, `mean` or
    `cls`. None: as the model's files say; if they say nothing, an encoder takes the mean, and
    embeddings of a decoder are refused. A decoder has `last_token` alone."""
    adapters: dict[str, str] = field(default_factory=dict)
    """LoRA adapters by name: a PEFT folder or a GGUF file each. A request names one as its `model`
    (over HTTP) or its `adapter`."""
    max_adapters: int | None = None
    """How many adapters may be loaded at a time, 0 to 1024. None: as many as `adapters` has; 0 of
    them mean that none can be loaded later, and cost nothing."""
    max_adapter_rank: int | None = None
    """The largest rank of an adapter, 1 to 1024. None: that of `adapters`, or 16 without any."""
    mmproj: str | None = None
    """The tower with which the model reads images: a GGUF file that llama.cpp's converter writes
    (`--mmproj`). None: the one in the model's folder, or the only `mmproj` file beside the model's
    file, if it fits; 'none': images are not read. An engine with images takes no adapters, no
    `model_lib` and no sliding window, and drafts no tokens behind images."""
    allow_image_hosts: list[str] = field(default_factory=list)
    """Hosts from which images are fetched, `example.org` or `example.org:8443`. Without any, images
    are in the request alone, as `data:` addresses. Addresses inside a network are never asked."""
    verbose: bool = True
    """Log the memory plan."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None:
                value = if_empty(one.name, one.default)
            if value is not None:
                object.__setattr__(self, one.name, RULES[one.name](one.name, value))
        self._settle_precision()
        self._refuse_what_is_missing()
        self._refuse_contradictions()

    def _settle_precision(self) -> None:
        """Bring the older name and the newer one together."""
        older, newer = self.prompt_precision, self.precision
        meant = None if older is None else PROMPT_PRECISIONS[older]
        if newer is not None and meant not in (None, newer):
            words = f"precision is {newer!r}; leave out one of the two"
            raise InvalidField("prompt_precision", older, words)
        object.__setattr__(self, "precision", newer or meant)
        object.__setattr__(self, "prompt_precision", None)

    @classmethod
    def of(cls, config: EngineConfig | Mapping[str, object] | None) -> EngineConfig:
        """`config` itself, or a config of the fields of a mapping. Raises `InvalidField`."""
        if isinstance(config, EngineConfig):
            return config
        if config is not None and not isinstance(config, Mapping):
            allowed = "should be an EngineConfig, or a dict of its fields"
            raise checks.wrong_type("engine_config", config, allowed)
        return cls.from_mapping(config or {})

    def asjson(self) -> str:
        """All fields as a JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> EngineConfig:
        """Read the text of `asjson`. An unknown key raises `InvalidField` with the nearest known
        name."""
        return cls.from_mapping(parse_json_object(text, "the engine config"))

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> EngineConfig:
        """Like `from_json`, for a mapping of fields."""
        for name, value in values.items():
            checks.known_field(name, value, RULES)
        checked_when_made: dict[str, Any] = dict(values)
        return cls(**checked_when_made)

    def _refuse_what_is_missing(self) -> None:
        """Raise for a known setting that this version does not have. `_DONE_SO_FAR` lists them."""
        for name, done, reason in _DONE_SO_FAR:
            value = getattr(self, name)
            if value not in done:
                raise InvalidField(name, value, reason)

    def _refuse_contradictions(self) -> None:
        mode, models = self.speculative_mode, self.additional_models
        if mode in DRAFTERS and len(models) != 1:
            words = f"speculative_mode {mode!r} takes exactly one, {DRAFTERS[mode]}"
            raise InvalidField("additional_models", models, words)
        if mode not in DRAFTERS and models:
            known = " or ".join(map(repr, DRAFTERS))
            words = f"speculative_mode {mode!r} uses none; leave it out, or set {known}"
            raise InvalidField("additional_models", models, words)
        if mode == "eagle":
            self._refuse_with_head()
        if mode in ("auto", "disable") and self.spec_draft_length:
            words = f"speculative_mode is {mode!r}; leave it out, or choose a mode that drafts"
            raise InvalidField("spec_draft_length", self.spec_draft_length, words)
        if self.max_adapters is not None and self.max_adapters < len(self.adapters):
            words = f"there are {len(self.adapters)} in adapters; give at least that"
            raise InvalidField("max_adapters", self.max_adapters, words)
        self._refuse_with_ranks()
        if self.kv_events is not None and self.prefix_cache_mode == "disable":
            words = "there is no prefix cache (prefix_cache_mode is 'disable'); leave it out"
            raise InvalidField("kv_events", self.kv_events.endpoint, words)

    def _refuse_with_head(self) -> None:
        """What a model with an EAGLE head cannot have: the two are compiled together."""
        if self.model_lib is not None or not isinstance(self.additional_models[0], str):
            given = self.model_lib or self.additional_models
            words = "a model and its EAGLE head are compiled together; leave the library out"
            raise InvalidField("model_lib", given, words)
        others: tuple[tuple[str, object, tuple[object, ...]], ...] = (
            ("adapters", [*self.adapters] or self.max_adapters, ([], None, 0)),
            ("tensor_parallel_shards", self.tensor_parallel_shards, (None, 1)),
            ("kv_cache_dtype", self.kv_cache_dtype, ("auto",)),
        )
        for name, value, allowed in others:
            if value not in allowed:
                words = "not together with speculative_mode 'eagle'; leave one out"
                raise InvalidField(name, value, words)

    def _refuse_with_ranks(self) -> None:
        ranks = self.tensor_parallel_shards
        if ranks is None or ranks == 1:
            return
        words = None
        if self.adapters or self.max_adapters:
            words = "not together with adapters; merge them into the model (convert_weight --lora)"
        if self.model_lib is not None:
            words = "not together with model_lib: each rank has a library of its own; leave it out"
        if words is not None:
            raise InvalidField("tensor_parallel_shards", ranks, words)


_ONE_DEVICE = "the model runs on one device in this version; leave it out or give 1"
_NO_TREE = "drafts are chains in this version; leave it out or give 1"
_BY_MODEL = "the model's file says what it keeps in this version; leave it out or give kv_cache"
_NO_HISTORY = (
    "states are kept at chosen places in this version, without a history; leave it out or give 1"
)

_DONE_SO_FAR: list[tuple[str, tuple[object, ...], str]] = [
    ("pipeline_parallel_stages", (None, 1), _ONE_DEVICE),
    ("opt", (None,), "optimisation levels are not supported in this version; leave it out"),
    ("spec_tree_width", (1,), _NO_TREE),
    ("kv_state_kind", (None, "kv_cache"), _BY_MODEL),
    ("max_history_size", (None, 0, 1), _NO_HISTORY),
]
