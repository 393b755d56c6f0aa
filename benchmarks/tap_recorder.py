"""A runner that keeps, beside each text, what some layers of the model make of its tokens."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import numpy.typing as npt
from head_files import write_tensors
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.registry import choose_backend
from mlc_llm.compiler import build
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.eagle import open_eagle
from mlc_llm.models.eagle import EagleDecoder
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.step_tensors import StepTensors
from mlc_llm.precision import Precision
from mlc_llm.runtime.batch import Batch, BatchOutput
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening.bundle import open_model

Halves = npt.NDArray[np.float16]
DIM = 32
"""Of the heads of attention of a head that is never asked."""


class Recorded(NamedTuple):
    """A text, and what was made of it."""

    tokens: list[int]
    first: int
    """The first token of the answer."""
    vectors: Halves
    """[tokens, taps * hidden]."""


class _Keeping(EagleDecoder):
    """Its pages have the vectors of all taps, beside each other, and it computes no head."""

    def _remembered(self, x: Tensor, taps: dict[int, Tensor], step: StepTensors) -> object:
        tapped = self.ops.columns_beside([taps[i] for i in self.eagle.spec.taps])
        (kept,) = self.ops.keep_vectors(
            tapped, self._head_inputs(step).slot, self._vector_pages(step)
        )
        return kept


class Recorder:
    """A `Runner`. `heard` gets each text when its sequence is removed."""

    def __init__(self, runner: ModelRunner, width: int, heard: Callable[[Recorded], None]) -> None:
        """width: numbers of a token's vectors."""
        self._runner, self._width, self._heard = runner, width, heard
        self._tokens: dict[int, list[int]] = {}
        self._firsts: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def add_sequence(self, seq_id: int) -> None:
        self._tokens[seq_id], self._firsts[seq_id] = [], 0
        self._runner.add_sequence(seq_id)

    def run(self, batch: Batch) -> BatchOutput:
        found = self._runner.run(batch)
        for row in batch.rows:
            self._tokens[row.seq_id] += row.token_ids
            self._firsts[row.seq_id] += row.prompt_tokens
        return found

    def remove_sequence(self, seq_id: int) -> None:
        """The last token was chosen and never computed, so it has no vectors."""
        tokens, first = self._tokens.pop(seq_id), self._firsts.pop(seq_id)
        if tokens:
            *_, pages = self._runner.export_pages(seq_id).tensors
            vectors = pages.reshape(-1, self._width)[: len(tokens)]
            self._heard(Recorded(tokens, first, vectors))
        self._runner.remove_sequence(seq_id)


def open_recorder(
    model: Path,
    taps: Sequence[int],
    config: EngineConfig,
    precision: Precision,
    heard: Callable[[Recorded], None],
) -> Recorder:
    """The model of a file. taps: behind how many layers vectors are kept."""
    files = open_model(str(model)).files
    assert files is not None
    spec, backend = files.plan().spec, choose_backend(None).with_precision(precision)
    assert config.max_num_sequence and config.max_total_sequence_length
    assert config.prefill_chunk_size and config.max_single_sequence_length
    with tempfile.TemporaryDirectory() as name:
        head, library, weights = (Path(name) / one for one in ("head", "library", "weights"))
        for one in (head, library, weights):
            one.mkdir()
        _write_head(head, spec, taps)
        whole: ModelFiles = open_eagle(head, files)
        with mock.patch.object(build, "EagleDecoder", _Keeping):
            build.build_library(whole.plan().spec, backend, library)
        pack_weights(whole.plan(), backend, whole.tensors, weights, lambda _: None)
        runner = ModelRunner(
            library,
            weights,
            num_pages=config.max_total_sequence_length // config.kv_cache_page_size,
            max_num_sequence=config.max_num_sequence,
            max_batch_tokens=config.prefill_chunk_size,
            context_window=config.max_single_sequence_length,
            precision=precision,
        )
    return Recorder(runner, len(taps) * spec.hidden, heard)


def _write_head(folder: Path, spec: ModelSpec, taps: Sequence[int]) -> None:
    """An EAGLE-3 head of zeros. Its heads are as wide as it takes for one tensor of pages to have
    room for the vectors of all taps (`ModelSpec.vector_pages`)."""
    hidden, width, rows = spec.hidden, len(taps) * spec.hidden, 16
    heads, odd = divmod(width, 2 * DIM)
    assert not odd, f"{width} numbers of a token"
    layer, wide = "midlayer", heads * DIM
    shapes = {f"{layer}.self_attn.{one}_proj.weight": (wide, 2 * hidden) for one in "qkv"}
    shapes |= {f"{layer}.mlp.{one}_proj.weight": (DIM, hidden) for one in ("gate", "up")}
    shapes |= {
        f"{layer}.self_attn.o_proj.weight": (hidden, wide),
        f"{layer}.mlp.down_proj.weight": (hidden, DIM),
        "fc.weight": (hidden, width),
        "lm_head.weight": (rows, hidden),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    vectors = [f"{layer}.{one}.weight" for one in norms] + ["norm.weight"]
    tensors: dict[str, npt.NDArray[np.generic]] = {
        name: np.zeros(shape, np.float16) for name, shape in shapes.items()
    }
    tensors |= {name: np.ones(hidden, np.float16) for name in vectors}
    write_tensors(folder / "model.safetensors", {**tensors, "d2t": np.zeros(rows, np.int64)})
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": DIM,
        "max_position_embeddings": 2048,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": DIM,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": spec.vocab,
        "draft_vocab_size": rows,
        "eagle_aux_hidden_state_layer_ids": list(taps),
    }
    (folder / "config.json").write_text(json.dumps(config))
