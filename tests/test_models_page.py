"""docs/models.md: it is up to date, complete, and says what was not measured."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from encoders_page import encoder_cells, encoder_notes, read_encoder_figures
from images_page import IMAGE_ROWS, image_cells, images_section, read_image_figures
from kept_figures import measure_each, read_kept, write_kept
from models_page import (
    ARCHITECTURE_HEAD,
    FOLDERS,
    NOT_MEASURED,
    PAGE,
    Measured,
    architecture,
    notes,
    packed_bits,
    page,
    read_figures,
)

from mlc_llm.loader.gguf_tensors import KINDS, OTHER_KINDS
from mlc_llm.model_files.quantized_folder import METHODS
from mlc_llm.models.mmproj import CLASSES
from mlc_llm.models.registry import EMBEDDERS, ENCODERS, ROWS, Architecture
from mlc_llm.quantization.group_schemes import SCHEMES

QWEN3 = next(row for row in ROWS if row.config == "Qwen3ForCausalLM")
FIGURES = read_figures()
ENCODER_FIGURES = read_encoder_figures()
IMAGE_FIGURES = read_image_figures()


def first_cells(title: str, column: int = 0) -> list[str]:
    """The names in a column of the first table of a section."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [row[column].strip("`") for row in rows]


def test_the_page_is_up_to_date() -> None:
    renew = "run: .venv/bin/python benchmarks/models.py --render"
    assert PAGE.read_text(encoding="utf-8") == page(FIGURES), renew


def test_the_page_has_the_rows_of_the_registry_and_no_others() -> None:
    names = zip(first_cells("Architectures"), first_cells("Architectures", 1), strict=True)
    assert list(names) == [(row.gguf, row.config) for row in ROWS]
    assert set(FIGURES) <= {row.config for row in ROWS}
    names = zip(first_cells("Encoders"), first_cells("Encoders", 1), strict=True)
    assert list(names) == [(row.gguf, row.config) for row in (*ENCODERS, *EMBEDDERS)]
    assert set(ENCODER_FIGURES) <= {row.config for row in (*ENCODERS, *EMBEDDERS)}


def test_every_class_that_reads_images_has_a_row_and_figures() -> None:
    assert set(first_cells("Images", 1)) == set(CLASSES) == set(IMAGE_FIGURES)
    names = zip(first_cells("Images"), first_cells("Images", 1), strict=True)
    assert list(names) == [(row.gguf, row.config) for row in IMAGE_ROWS]
    assert all(row.is_part for row in IMAGE_ROWS)


def test_the_page_has_every_type_and_no_others() -> None:
    kinds = [kind for kind, _, _ in KINDS.values()] + list(OTHER_KINDS.values())
    assert first_cells("Tensor types of GGUF files") == kinds
    assert first_cells("Folders of MLC LLM") == list(SCHEMES)
    assert set(first_cells("Hugging Face folders")) == {"plain", *METHODS}
    assert {how for how, _ in FOLDERS} == {"plain", *METHODS}


def test_packed_bits() -> None:
    """A scale is float16 or float32; in fixed point it is int16, with a float32 for each row."""
    assert packed_bits("Q4_0") == ["4.54", "4.5", "5"]
    assert packed_bits("Q8_0") == ["8.5", "8.5", "9"]
    assert packed_bits("F16") == ["16", "16", "32"]


def test_what_was_not_measured_is_no_number() -> None:
    assert architecture(QWEN3, {})[2:] == [NOT_MEASURED] * (len(ARCHITECTURE_HEAD) - 2)
    assert list(notes({})) == []
    cells = architecture(QWEN3, {QWEN3.config: made()})
    assert cells[2:] == [
        "CPU, reference", "1.5e-06", "2.0e-06", NOT_MEASURED, "yes", NOT_MEASURED,
        NOT_MEASURED,
    ]  # fmt: skip


def test_what_cpu_kernels_lack_is_named() -> None:
    found = made()
    found["config"] |= {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4}
    found["config"] |= {"moe_intermediate_size": 40, "num_experts_per_tok": 2}
    cells = architecture(QWEN3, {QWEN3.config: found})
    assert cells[2].startswith("reference only") and cells[7] == "–"


def test_the_first_note_is_of_most_models() -> None:
    three = {row.config: made() for row in ROWS[:3]}
    other = ROWS[1].config
    three[other]["measured"] = {"date": "2026-01-03", "torch": "9"}
    expected = ["2026-01-02, a processor", f"{other}: 2026-01-03, torch 9"]
    assert list(notes(three)) == [f"* Measured: {words}." for words in expected]


def test_figures_and_what_went_wrong_are_told() -> None:
    found = made()
    found["gguf"] = {"refused": "no such model"}
    found["folder"]["greedy"] = False
    found["peer"] = {"error": 3e-6}
    found["quantized"] = {"name": "q4_0", "kernels": "vnni", "kl": 1e-7}
    prompts = {"mlc_llm, prompts": 512.2, "llama.cpp, prompts": 400.0}
    found["speed"] = {"mlc_llm": 101.6, "llama.cpp": 99.2, **prompts}
    cells = architecture(QWEN3, {QWEN3.config: found})
    assert cells[3:] == [
        "refused", "2.0e-06", "3.0e-06", "**no**", "1.0e-07 (q4_0, vnni)", "102, 99; 512, 400"
    ]  # fmt: skip
    assert "no such model" in "\n".join(notes({QWEN3.config: found}))


@pytest.mark.parametrize("row", [row for row in ROWS if row.config in FIGURES])
def test_the_figures_are_good(row: Architecture) -> None:
    """A page with a wrong model on it must not be written unseen."""
    found = FIGURES[row.config]
    for one in (found["gguf"], found["folder"]):
        assert one.get("error", 0) <= 1e-4 and one.get("greedy", True)
    assert found.get("peer", {}).get("error", 0) <= 1e-2
    assert found["quantized"] is None or found["quantized"]["kl"] <= 5e-4
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["measured"]["date"])


@pytest.mark.parametrize("name", ENCODER_FIGURES)
def test_the_figures_of_encoders_are_good(name: str) -> None:
    found = ENCODER_FIGURES[name]
    for one in (found["gguf"], found["folder"], found["cpu"]):
        assert one.get("distance", 0) <= 1e-5
    assert "distance" in found["folder"] and "distance" in found["cpu"]


def test_encoders_that_were_not_measured_or_refused() -> None:
    row = ENCODERS[0]
    assert encoder_cells(row, {})[2:] == [NOT_MEASURED] * 3
    facts = {"date": "2026-01-02", "torch": "9"}
    one: Any = {"measured": facts, "kernels": "vnni", "gguf": {"refused": "no such layer"}}
    one |= {"folder": {"distance": 1.5e-13}, "cpu": {"distance": 2e-9}}
    assert encoder_cells(row, {row.config: one})[2:] == ["refused", "1.5e-13", "2.0e-09 (vnni)"]
    assert list(encoder_notes({row.config: one})) == [
        "* Measured: 2026-01-02, torch 9.",
        f"* Refused: the GGUF file of {row.config}: `no such layer`.",
    ]


@pytest.mark.parametrize("name", IMAGE_FIGURES)
def test_the_figures_of_images_are_good(name: str) -> None:
    found = IMAGE_FIGURES[name]
    for one in (found["gguf"], found["folder"]):
        assert one["vectors"] <= 1e-5 and one["vectors_cpu"] <= 1e-3
        assert one["logits"] <= 1e-4 and one["greedy"]


def test_images_that_were_not_measured_or_answered_otherwise() -> None:
    row = IMAGE_ROWS[0]
    assert image_cells(row, {})[3:] == [NOT_MEASURED] * 7
    assert "Measured" not in images_section({})
    good: Any = {"vectors": 1e-6, "vectors_cpu": 2e-4, "logits": 3e-6, "greedy": True}
    bad = {"vectors": 4e-6, "vectors_cpu": 5e-4, "logits": 6e-6, "greedy": False}
    one: Any = {"measured": {"date": "2026-01-02", "torch": "9"}, "kernels": "vnni"}
    one |= {"gguf": good, "folder": bad}
    assert image_cells(row, {row.config: one})[2:] == [
        "`gemma3`", "1.0e-06", "4.0e-06", "2.0e-04 (vnni)", "5.0e-04 (vnni)", "3.0e-06", "6.0e-06",
        "**no**",
    ]  # fmt: skip
    assert "* Measured: 2026-01-02, torch 9." in images_section({row.config: one})


def test_a_measurement_that_fails_keeps_the_earlier_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, rows = tmp_path / "kept.json", ROWS[:3]
    figures = {rows[0].config: 1, rows[1].config: 2}

    def measured(row: Architecture, folder: Path) -> int:
        assert folder.is_dir() and row != rows[1], "no such model"
        return 3

    failed = measure_each(rows, figures, measured, lambda found: write_kept(file, rows, found))
    assert failed == [rows[1].config] and "no such model" in capsys.readouterr().err
    kept = read_kept(file)
    assert list(kept) == [row.config for row in rows] and list(kept.values()) == [3, 2, 3]


def made() -> Measured:
    return {
        "measured": {"date": "2026-01-02", "cpu": "a processor"},
        "config": {
            "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
            "head_dim": 32, "vocab_size": 300, "max_position_embeddings": 256,
            "rms_norm_eps": 1e-6, "hidden_act": "silu",
        },
        "gguf": {"error": 1.5e-6, "greedy": True},
        "folder": {"error": 2e-6, "greedy": True},
        "quantized": None,
        "speed": None,
    }  # fmt: skip
