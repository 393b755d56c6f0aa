"""Measures each architecture on a small random model, and writes docs/models.md.

    python benchmarks/models.py                 # every architecture of the registry
    python benchmarks/models.py --only gemma3   # one; the figures of the others stay
    python benchmarks/models.py --missing       # those that have no figures, or no KL yet
    python benchmarks/models.py --peer          # only the errors of llama.cpp, which are quick
    python benchmarks/models.py --speed FOLDER  # only the speeds; FOLDER is compare.py's --peer-dir
    python benchmarks/models.py --render        # only the page, from the figures that are kept

The figures are kept in models.json, encoders.json and images.json, beside this script. To measure
needs the extras `oracle` and `images`, and MLC_LLM_LLAMA_CPP as the name of a folder of llama.cpp's
sources, whose converter writes the GGUF files. The errors of llama.cpp itself need
LLAMA_CPP_LIB_PATH too, the folder of its built libraries. The random models are those of
tests/oracle.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Collection, Sequence
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from agreement import Agreement
from encoders import built, measure_encoders
from encoders_page import VECTOR_ROWS, read_encoder_figures
from images import measure_images
from images_page import IMAGE_ROWS, read_image_figures
from kept_figures import measure_each
from models_page import (
    PAGE,
    Compared,
    Figures,
    Measured,
    Quantized,
    lacking,
    page,
    read_figures,
    write_figures,
)
from ours import greedy

from mlc_llm.backends.registry import choose_backend
from mlc_llm.json_file import read_json_object
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.model_files.quantized import QuantizedModel
from mlc_llm.models.registry import ROWS, Architecture
from mlc_llm.support.machine import describe

if TYPE_CHECKING:
    from mlc_llm.runtime.model_runner import ModelRunner

TESTS = Path(__file__).resolve().parents[1] / "tests"
QUANTIZATION = "q4_0"
PEER_LIBRARIES = "LLAMA_CPP_LIB_PATH"
LENGTH, PROMPT, ANSWER = 200, 30, 64
"""Tokens: of the text whose logits are compared, of a prompt and of its greedy answer."""
PACKAGES = ("mlc-llm", "apache-tvm", "torch", "transformers", "gguf")
Logits = npt.NDArray[np.float64]


class Oracle:
    """A random model of Transformers in float32."""

    def __init__(self, config_class: str) -> None:
        """Raises LookupError for a class that no test of the oracle makes."""
        from random_models import random_of

        self.model: Any = random_of(config_class)
        rng = np.random.default_rng(0)
        self.tokens: list[int] = rng.integers(0, 256, LENGTH).tolist()

    def logits(self, tokens: Sequence[int]) -> Logits:
        import torch

        with torch.no_grad():
            found = self.model(torch.tensor([list(tokens)])).logits[0].double().numpy()
        return np.asarray(found, np.float64)

    def compared(self, runner: ModelRunner) -> Compared:
        """The largest error of a logit, as a part of the largest logit; whether the greedy answer
        is the same to the last token."""
        exact = self.logits(self.tokens)
        found = runner.logits(self.tokens).astype(np.float64)
        error = np.abs(found - exact).max() / np.abs(exact).max()
        prompt = self.tokens[:PROMPT]
        answer = greedy(runner, prompt, ANSWER)
        best = self.logits(prompt + answer[:-1])[PROMPT - 1 :].argmax(axis=1).tolist()
        return {"error": float(f"{error:.2g}"), "greedy": answer == best}


def measured(row: Architecture, folder: Path) -> Measured:
    """All figures of one architecture but its speed. folder: for its files, empty."""
    oracle = Oracle(row.config)
    files = folder / "files"
    path, refused = _converted(oracle.model, files)
    hugging_face = HuggingFaceModel.open(files)
    config = read_json_object(files / "config.json", 1 << 20)
    gguf: Compared = {"refused": refused}
    if path is not None:
        runner = _runner(GGUFModel.open(path), folder / "of-file", "reference")
        gguf = oracle.compared(runner)
    can_quantize = not lacking(config)
    return {
        "measured": _circumstances(),
        "config": config,
        "folder": oracle.compared(_runner(hugging_face, folder / "of-folder", "reference")),
        "gguf": gguf,
        "quantized": _divergence(hugging_face, oracle.tokens, folder) if can_quantize else None,
        "speed": None,
    }


def measured_peer(row: Architecture, folder: Path) -> Compared:
    """The error of llama.cpp itself. folder: for the files, empty."""
    from llama_cpp_side import Refused, logits_of

    oracle = Oracle(row.config)
    path, refused = _converted(oracle.model, folder)
    if path is None:
        return {"refused": refused}
    try:
        found, exact = logits_of(path, oracle.tokens), oracle.logits(oracle.tokens)
    except Refused as error:
        return {"refused": str(error)}
    return {"error": float(f"{np.abs(found - exact).max() / np.abs(exact).max():.2g}")}


def _converted(model: Any, files: Path) -> tuple[Path | None, str]:
    """The GGUF file, or what llama.cpp's converter says; the files of Transformers are written."""
    from converted import converted
    from dense_models import fields_of

    try:
        return converted(model, files, **fields_of(model)), ""
    except AssertionError as error:
        lines = str(error).strip().splitlines()
        return None, next((line for line in reversed(lines) if "Error" in line), lines[-1])[:200]


def _runner(files: ModelFiles, folder: Path, kernels: str | None) -> ModelRunner:
    """kernels: None is this machine's."""
    import architecture_tools

    folder.mkdir()
    with mock.patch.object(architecture_tools, "build_kept", built):
        found: ModelRunner = architecture_tools.runner_of_plan(
            files.plan(), files.tensors, folder, kernels
        )
    return found


def _divergence(files: HuggingFaceModel, tokens: list[int], folder: Path) -> Quantized:
    """Of the CPU kernels from the reference kernels, on one quantised copy."""
    copy = QuantizedModel.of_files(files, QUANTIZATION)
    exact = _runner(copy, folder / "exact", "reference").logits(tokens)
    ours = _runner(copy, folder / "ours", None).logits(tokens)
    kl = Agreement.of(exact, ours).kl.mean()
    return {"name": QUANTIZATION, "kernels": choose_backend().name, "kl": float(f"{kl:.2g}")}


def _circumstances() -> dict[str, str]:
    versions = {name: version(name) for name in PACKAGES}
    return {"date": date.today().isoformat(), "cpu": describe().cpu, **versions}


def is_missing(row: Architecture, figures: Figures) -> bool:
    """It has no figures, or no KL though the CPU kernels compute it."""
    if row.config not in figures:
        return True
    found = figures[row.config]
    return found["quantized"] is None and not lacking(found["config"])


def measure(rows: Sequence[Architecture], figures: Figures) -> list[str]:
    """See `measure_each`."""
    return measure_each(rows, figures, partial(_measured_again, figures), write_figures)


def _measured_again(figures: Figures, row: Architecture, folder: Path) -> Measured:
    """With the speed that was measured before, and llama.cpp's error if it is not built here."""
    for name in ("ours", "peer"):
        (folder / name).mkdir()
    found, earlier = measured(row, folder / "ours"), figures.get(row.config)
    if PEER_LIBRARIES in os.environ:
        found["peer"] = measured_peer(row, folder / "peer")
    elif earlier and "peer" in earlier:
        found["peer"] = earlier["peer"]
    if earlier:
        found["speed"] = earlier["speed"]
    return found


def measure_peer(rows: Sequence[Architecture], figures: Figures) -> None:
    """Only the errors of llama.cpp, of architectures that have figures; each is kept at once."""
    for row in rows:
        if row.config in figures:
            print(row.config, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                figures[row.config]["peer"] = measured_peer(row, Path(folder))
            write_figures(figures)


def measure_speed(rows: Sequence[Architecture], figures: Figures, peer_folder: Path) -> list[str]:
    """Only the speeds, of architectures that have figures; each is kept at once. Returns what
    `measure` returns."""
    from model_speeds import measured_speed
    from peers.base import Missing

    failed = []
    for row in rows:
        if row.config not in figures or "text_config" in figures[row.config]["config"]:
            continue  # the second kind has the decoder of another row
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = measured_speed(
                    row, figures[row.config]["config"], Path(folder), peer_folder
                )
            except (AssertionError, Missing) as error:
                print(f"{row.config}: {str(error).strip()[-500:]}", flush=True)
                failed.append(row.config)
                continue
        print(row.config, found, flush=True)
        figures[row.config]["speed"] = found
        write_figures(figures)
    return failed


def _chosen(
    rows: Sequence[Architecture], only: Sequence[str], kept: Collection[str] = ()
) -> list[Architecture]:
    """Those that are named, or all; none of those that are kept."""
    named = [row for row in rows if not only or {row.gguf, row.config} & set(only)]
    return [row for row in named if row.config not in kept]


def _encoders_and_images(only: Sequence[str], *, missing: bool) -> list[str]:
    """Measure those that are named, or all. Returns what `measure` returns."""
    encoders, images = read_encoder_figures(), read_image_figures()
    facts = _circumstances()
    rows = _chosen(VECTOR_ROWS, only, encoders if missing else ())
    failed = measure_encoders(rows, encoders, facts)
    rows = _chosen(IMAGE_ROWS, only, images if missing else ())
    return failed + measure_images(rows, images, facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--missing", action="store_true", help="only what has no figures")
    parser.add_argument("--peer", action="store_true", help="only the errors of llama.cpp")
    parser.add_argument("--speed", type=Path, metavar="FOLDER", help="only the speeds")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    given = parser.parse_args()
    known = {name for row in (*ROWS, *VECTOR_ROWS) for name in (row.gguf, row.config)}
    if unknown := set(given.only) - known:
        parser.error(f"--only: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    figures, failed = read_figures(), []
    if not given.render:
        sys.path[:0] = [str(TESTS / name) for name in ("oracle", "models", "")]
        rows = _chosen(ROWS, given.only)
        rows = [row for row in rows if not given.missing or is_missing(row, figures)]
        if given.speed:
            failed = measure_speed(rows, figures, given.speed)
        elif given.peer:
            measure_peer(rows, figures)
        else:
            failed = measure(rows, figures)
            failed += _encoders_and_images(given.only, missing=given.missing)
    PAGE.write_text(page(figures), encoding="utf-8")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
