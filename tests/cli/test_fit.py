"""`mlc_llm fit`: the terms, the modes, the exit codes, and flags named where they are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_encoders import TinyEncoder

from mlc_llm.cli.__main__ import main
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import complete_config
from mlc_llm.serve.opening import memory
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.opening.vision import with_vision
from mlc_llm.testing.tiny_eyes import write_tiny_eyes
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

GB = 2**30
SHAPE = TinyShape(layers=3, kv_heads=2, head_dim=32, context=4096)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(memory, "free_memory", lambda: GB)
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))
    return str(write_tiny_model(tmp_path / "tiny.gguf", shape=SHAPE))


def fit(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["fit", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", model, "--mode", "server"]) == 0
    out = capsys.readouterr().out
    for words in ("weights", "activations", "logits", "rope", "runtime", "kv cache", "* server"):
        assert words in out
    assert f"85% of {GB:,} free" in out and "It fits" in out


@pytest.mark.usefixtures("model")
def test_an_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(TinyEncoder().write(tmp_path / "encoder.gguf"))
    assert main(["fit", path]) == 0
    out = capsys.readouterr().out
    assert "encoder: an encoder" in out and "Nothing of a text is kept" in out
    assert "precision" not in out
    code, found = fit(capsys, path)
    (limits,) = {str(one | {"bytes": 0}) for one in found["modes"].values()}
    assert code == 0 and "'max_num_sequence': 128" in limits, "the same in each mode"
    assert main(["fit", path, "--tokens", "4096"]) == 2
    assert "--tokens = 4096 is not allowed: this model is an encoder" in capsys.readouterr().err


def test_the_terms_add_up_to_what_the_engine_plans(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = fit(capsys, model)
    assert code == 0 and found["free_bytes"] == GB and found["context_window"] == 4096
    size = memory.model_size(open_model(model))
    for mode, choice in found["modes"].items():
        config, plan = complete_config(EngineConfig(mode=mode), size, GB)
        terms = dict(choice["bytes"])
        assert terms.pop("budget") == int(GB * 0.85) >= terms["total"]
        assert terms.pop("total") == sum(terms.values())
        assert terms["weights"] == plan.weights and terms["kv_cache"] % plan.kv_per_token == 0
        assert choice["max_total_sequence_length"] == config.max_total_sequence_length
        assert choice["tokens_that_fit"] == plan.fit
    assert found["modes"]["server"]["max_num_sequence"] == 128
    assert found["modes"]["interactive"]["max_total_sequence_length"] == 4096


@pytest.mark.usefixtures("model")
def test_the_tower_that_serve_would_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, config = write_tiny_eyes(tmp_path), EngineConfig(mode="local")
    code, found = fit(capsys, str(files.model))
    seen = with_vision(open_model(str(files.model)), config)
    complete, plan = complete_config(config, memory.model_size(seen), GB)
    assert code == 0 and plan.tower > 0
    sizes = found["modes"]["local"]["bytes"]
    assert sizes["tower"] == plan.tower
    assert sizes["total"] == plan.total(complete.max_total_sequence_length or 0)
    files.mmproj.unlink()
    assert "tower" not in fit(capsys, str(files.model))[1]["modes"]["local"]["bytes"]


def test_pages_of_bytes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """36 bytes instead of 32 numbers: the elements, a scale of two bytes, and room to a line."""
    code, found = fit(capsys, model, "--kv-cache-dtype", "int8")
    assert code == 0 and found["kv_bytes_per_token"] == 3 * 2 * 2 * 36
    assert main(["fit", model, "--kv-cache-dtype", "int8"]) == 0
    assert "8-bit keys and values" in capsys.readouterr().out


def test_given_limits_are_obeyed_in_every_mode(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--context",
        "100",
        "--sequences",
        "3",
        "--chunk",
        "40",
        "--tokens",
        "333",
        "--utilization",
        "0.5",
    ]
    code, found = fit(capsys, model, *words)
    assert code == 0
    for choice in found["modes"].values():
        assert choice["max_num_sequence"] == 3 and choice["prefill_chunk_size"] == 40
        assert choice["max_single_sequence_length"] == 100
        assert choice["max_total_sequence_length"] == 333
        assert choice["bytes"]["budget"] == GB // 2


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--tokens", 16_000_000), ("--chunk", 2**31 - 1), ("--sequences", 2**31 - 1)],
)
def test_what_does_not_fit_has_a_reason_and_the_exit_code(
    model: str, capsys: pytest.CaptureFixture[str], flag: str, value: int
) -> None:
    code, found = fit(capsys, model, flag, str(value))
    chosen = found["modes"]["local"]
    assert code == 1 and not chosen["fits"] and chosen["bytes"]["total"] > GB
    assert chosen["reason"].startswith(f"{flag} = {value} is not allowed: Insufficient memory")
    assert main(["fit", model, flag, str(value)]) == 1
    assert f"It does not fit. {flag} = {value}" in capsys.readouterr().out


def test_sums_beyond_32_and_64_bits(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, changes = memory.model_size, dict[str, Any](most_tokens=None)
    monkeypatch.setattr(
        memory, "model_size", lambda *given, **more: replace(measured(*given, **more), **changes)
    )
    monkeypatch.setattr(memory, "free_memory", lambda: 2**63)
    code, found = fit(capsys, model, "--tokens", str(2**31 - 1), "--utilization", "1")
    terms = found["modes"]["local"]["bytes"]
    assert code == 0 and terms["kv_cache"] == 2**31 * found["kv_bytes_per_token"] > 2**40
    changes |= {"context_window": 2**31 - 1, "weight_bytes": 2**64}
    code, found = fit(capsys, model)
    assert code == 1 and found["modes"]["local"]["bytes"]["weights"] == 2**64
    assert found["modes"]["local"]["tokens_that_fit"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--context", "5000"], "--context = 5000 is not allowed: the model's context window"),
        (["--context", "200", "--tokens", "100"], "--context = 200 is not allowed: one sequence "),
        (["--tokens", str(2**31 - 1)], "--tokens = 2147483647 is not allowed: the pages of this"),
        (["--utilization", "nan"], "--utilization = nan is not allowed: should be above 0"),
        *[
            ([flag, str(value)], f"{flag} = {value} is not allowed: should be an integer in range")
            for flag in ("--context", "--tokens", "--chunk", "--sequences")
            for value in (2**31, 2**63, -1)
        ],
    ],
)
def test_wrong_values_name_the_flag(
    model: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["fit", model, *words]) == 2
    caught = capsys.readouterr()
    assert said in caught.err and caught.out == "" and caught.err.count("\n") == 1


def test_too_little_memory_hints_at_flags(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 2**20)
    code, found = fit(capsys, model)
    reason = found["modes"]["local"]["reason"]
    assert code == 1 and "1 MB free" in reason
    assert "raise --utilization" in reason and "lower --chunk or --sequences" in reason


def test_a_missing_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["fit", str(tmp_path / "no.gguf")]) == 2
    assert "no.gguf" in capsys.readouterr().err
