"""Scales that are chosen by what a text says of the columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conversion_tools import convert, quiet, read_shards, tiny_gguf

from mlc_llm.cli.__main__ import main
from mlc_llm.conversion.calibration import FEWEST, calibrate
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import UserError
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.quantized import QuantizedModel
from mlc_llm.quantization.block_format import Floats
from mlc_llm.quantization.group_schemes import SCHEMES, dequantize_groups, quantize_groups

GROUPED = [name for name, scheme in SCHEMES.items() if scheme.bits]
TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 8


def cost(weight: Floats, importance: Floats, values: Floats) -> Floats:
    """[rows, groups of 8]: no group of a scheme ends within one."""
    errors = importance * (values - weight) ** 2
    result: Floats = errors.reshape(len(weight), -1, 8).sum(axis=2)
    return result


@pytest.mark.parametrize("name", GROUPED)
def test_the_errors_cost_less_in_every_group(name: str) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 320)).astype(np.float32)
    importance = np.exp(2 * rng.standard_normal(320)).astype(np.float32)
    scheme = SCHEMES[name]
    size = scheme.group_size or 0
    totals = []
    for given in (None, importance):
        grouped = quantize_groups(scheme, weight, given)
        assert int(grouped.q.max()) <= 2 * scheme.most
        values = dequantize_groups(grouped)
        totals.append(cost(weight, importance, values).reshape(64, -1, size // 8).sum(axis=2))
    plain, weighted = totals
    assert (weighted <= plain * 1.01).all()
    assert weighted.sum() < 0.9 * plain.sum()


def test_zeros_stay_zeros() -> None:
    scheme = SCHEMES["q4f16_1"]
    weight, importance = np.zeros((2, 64), np.float32), np.ones(64, np.float32)
    assert not dequantize_groups(quantize_groups(scheme, weight, importance)).any()


def test_a_folder_is_written_with_the_importance(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "model.gguf")
    name = "blk.0.attn_q.weight"
    columns = model.tensors[name].shape[1]
    importance = {name: np.geomspace(1, 1e4, columns).astype(np.float32)}
    convert(model, "q4f16_1", tmp_path / "plain")
    convert_weight(model, "q4f16_1", tmp_path / "weighted", quiet, importance=importance)
    plain, weighted = (read_shards(tmp_path / one) for one in ("plain", "weighted"))
    changed = {key for key in plain if not np.array_equal(plain[key], weighted[key])}
    start = "model.layers.0.self_attn.qkv_proj"
    assert changed == {f"{start}.q_weight", f"{start}.q_scale"}


@pytest.mark.parametrize("kind", ["q4_0", "q5_0"])
def test_a_gguf_file_is_written_with_the_importance(kind: str, tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "model.gguf")
    name = "blk.0.attn_q.weight"
    importance = {name: np.geomspace(1, 1e4, model.tensors[name].shape[1]).astype(np.float32)}
    made = [
        GGUFFile.open(
            convert_weight(model, kind, tmp_path / f"{i}.gguf", quiet, importance=one).path
        )
        for i, one in enumerate(({}, importance))
    ]
    plain, weighted = (one.tensors for one in made)
    changed = {key for key in plain if not np.array_equal(plain[key].data, weighted[key].data)}
    assert changed == {name}
    at_load = QuantizedModel.of_files(model, kind, importance).tensors[name]
    assert np.array_equal(at_load.data, weighted[name].data), "what the gain is measured of"


def test_a_text_that_is_too_short_is_named(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "model.gguf")
    with pytest.raises(UserError, match=f"the text .* has 2 tokens; at least {FEWEST}"):
        calibrate(model, "q4f16_1", "ab", quiet)


def test_wrong_arguments_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tiny_gguf(tmp_path / "model.gguf").path)
    words = ["convert_weight", model, "-o", str(tmp_path / "out"), "--calibrate"]
    assert main([*words, str(tmp_path / "none"), "--quantization", "q4f16_1"]) == 2
    assert "none: No such file" in capsys.readouterr().err
    assert main([*words, model, "--quantization", "q8_0"]) == 2
    assert "--calibrate chooses scales of q3f16_0" in capsys.readouterr().err


@pytest.mark.slow
def test_what_enters_the_matrices_is_recorded(tmp_path: Path) -> None:
    """The input of a head is normalised: its mean square is that of the norm's weight."""
    model = tiny_gguf(tmp_path / "model.gguf", tied_head=False)
    found = calibrate(model, "q3f16_1", TEXT, quiet)
    norm = model.tensors["output_norm.weight"].data.view(np.float32)
    seen = found.importance["output.weight"]
    assert seen.shape == norm.shape
    assert 0.5 < seen.sum() / np.square(norm).sum() < 1.5
    same = [found.importance[f"blk.1.attn_{one}.weight"] for one in "qkv"]
    assert np.array_equal(same[0], same[1]) and np.array_equal(same[1], same[2])
    assert "token_embd.weight" not in found.importance
    assert found.positions == len(model.tokenizer().encode(TEXT)) // 2
    assert found.plain > 0
    assert found.weighted < 1.2 * found.plain
