"""Random small models of Transformers against our kernels, through the files of both makers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from architecture_tools import relative_error, runner_of, runner_of_folder
from converted import converted
from ours import greedy

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

LENGTH, ANSWER = 80, 64
"""Tokens."""
WORST = 1e-4
"""Of the largest logit."""
HALF_WORST = 5e-3
"""The same of kernels that keep keys and values in float16."""
SAME = 1e-6
"""The same between a GGUF file and a folder."""
SAME_FACTORS = 1e-5
"""The same of a file with rotary factors: they have 32 bits there, those of a folder have 64."""
VARIED = 8
"""Different tokens of a greedy answer: fewer say little of a model."""
LAST_NORMS = (
    "model.norm.weight",
    "embedding_norm.weight",
    "ln_f.weight",
    "final_layer_norm.weight",
    "final_layernorm.weight",
    "norm_f.weight",
)
HEAD_DIMS, GROUPS, KV_HEADS = (64, 80, 96, 128), (1, 4, 8, 2), (2, 1, 1, 2)
"""By seed."""


def sizes(seed: int) -> dict[str, Any]:
    """The hidden size is that of all heads, because some architectures can have no other."""
    dim, kv_heads = HEAD_DIMS[seed], KV_HEADS[seed]
    heads = kv_heads * GROUPS[seed]
    return {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": dim * heads,
        "intermediate_size": 32 * (seed + 2),
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "max_position_embeddings": 256,
        "tie_word_embeddings": bool(seed % 2),
        "attn_implementation": "eager",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def randomized(make: Callable[[Any], Any], config: Any, seed: int) -> Any:
    """A model of that config. Norms and biases are not all alike. One seed is always one model."""
    torch.manual_seed(seed)
    model = make(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            scale = 0.1 if "norm" in name else 0.3
            weights.add_(torch.randn_like(weights) * scale / max(weights.shape) ** 0.25)
    return varied(model).eval()


def varied(model: Any) -> Any:
    """The model, whose last norm changes the sign of every other number. Else the likeliest token
    is often the last one again, where the head is the embedding table."""
    (norm,) = (one for name, one in model.named_parameters() if _is_last_norm(name))
    least = 1 if norm.mean() < 0.5 else 0  # some architectures add 1 to what is stored
    with torch.no_grad():
        norm[::2] = -norm[::2] - 2 * least
    return model


def _is_last_norm(name: str) -> bool:
    return name.endswith(LAST_NORMS) and "vision" not in name


def tokens_of(seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, 256, LENGTH).tolist()
    return tokens


def exact_logits(model: Any, tokens: list[int]) -> npt.NDArray[np.float64]:
    """Of Transformers."""
    with torch.no_grad():
        found = model(torch.tensor([tokens])).logits[0].double().numpy()
    return np.asarray(found, np.float64)


def check_both_files(model: Any, folder: Path, seed: int) -> None:
    """As a GGUF file and as a folder; the two say one and the same spec."""
    path = converted(model, folder)
    file = GGUFFile.open(path)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    of_file = replace(read_gguf(file.metadata, file.tensors).spec, kinds={})
    assert _plain(read_config(config)) == _plain(of_file)
    check_reference(path, folder, model, seed)


def check_reference(path: Path, folder: Path, model: Any, seed: int) -> None:
    """Reference kernels. path: the GGUF file of what is in the folder."""
    for part in ("of-file", "of-folder"):
        (folder / part).mkdir()
    of_file = runner_of(path, folder / "of-file", "reference")
    check(of_file, model, seed)
    of_folder = runner_of_folder(folder, folder / "of-folder", "reference")
    check(of_folder, model, seed, chunks=(None,))
    tokens = tokens_of(seed)
    has_factors = any(name.startswith("rope_") for name in GGUFFile.open(path).tensors)
    error = relative_error(of_folder.logits(tokens), of_file.logits(tokens))
    assert error <= (SAME_FACTORS if has_factors else SAME)


def check_folder(model: Any, folder: Path, seed: int) -> None:
    model.save_pretrained(folder)
    check(runner_of_folder(folder, folder, "reference"), model, seed)


def check(
    runner: ModelRunner, model: Any, seed: int, chunks: tuple[int | None, ...] = (None, 7, 1)
) -> None:
    """Logits in chunks of several sizes, and greedy text."""
    tokens = tokens_of(seed)
    exact = exact_logits(model, tokens)
    for chunk in chunks:
        assert relative_error(runner.logits(tokens, chunk=chunk), exact) <= WORST, chunk
    prompt = tokens[:30]
    answer = greedy(runner, prompt, ANSWER)
    assert len(set(answer)) >= VARIED
    best = exact_logits(model, prompt + answer).argmax(axis=1).tolist()
    assert answer == best[len(prompt) - 1 : -1]


def _plain(spec: Any) -> Any:
    """Numbers as GGUF has them, in float32, and no divisors, which it may have as a tensor."""
    ropes = tuple(
        replace(one, factors=None if one.magnitude == 1 else one.factors) for one in spec.ropes
    )
    return replace(spec, norm_eps=float(np.float32(spec.norm_eps)), ropes=ropes)


def check_cpu_kernels(model: Any, folder: Path, seed: int) -> None:
    """All chunk sizes give the same bits. Seeds 1 and 3 have this machine's kernels, the others
    portable ones."""
    kernels = None if seed % 2 else "portable"
    tokens = tokens_of(seed)
    exact = exact_logits(model, tokens)
    runner = runner_of(converted(model, folder), folder, kernels)
    whole = runner.logits(tokens)
    assert relative_error(whole, exact) <= (HALF_WORST if kernels is None else WORST)
    for chunk in (7, 1):
        assert runner.logits(tokens, chunk=chunk).tobytes() == whole.tobytes(), chunk
