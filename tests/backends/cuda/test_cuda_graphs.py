"""Steps as CUDA graphs, on the stand-in for CUDA: the same bits, and no call that is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from emulated_models import emulated_library
from emulation import COMPILER
from fake_cuda import run_in_fake
from graph_programs import (
    allocate_in_capture,
    check_script,
    drop_and_grow,
    mixed,
    overlap,
    refused,
    repeat,
)
from model_programs import TOKENS
from tiny_models import TinyModels

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++, which compiles kernels")
NAMES = ["one-layer", pytest.param("big-heads", marks=pytest.mark.slow)]


def folders(tiny_models: TinyModels, name: str) -> tuple[str, str]:
    """Of a model's library and its weights."""
    file = GGUFFile.open(tiny_models.path(name))
    library: Path = emulated_library(read_gguf(file.metadata, file.tensors))
    return str(library), str(tiny_models.weights(name, "cuda"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_one_launch(tiny_models: TinyModels, fake: dict[str, str], name: str) -> None:
    said = run_in_fake(fake, repeat, *folders(tiny_models, name))
    calls, alive = json.loads(said.splitlines()[-1])
    assert not any(alive)
    for kind, (captured, repeated) in calls.items():
        assert not [line for line in [*captured, *repeated] if line.startswith("IN CAPTURE")]
        names = [line.split()[0] for line in captured]
        begin, end = map(names.index, ("cudaStreamBeginCapture", "cudaStreamEndCapture"))
        inside = captured[begin + 1 : end]
        assert {*names[begin + 1 : end]} <= {"cuLaunchKernelEx", "cudaSetDevice", "cudaGetDevice"}
        kernels = [line for line in inside if line.startswith("cuLaunchKernelEx")]
        assert kernels and all(line.endswith(" early 1") for line in kernels)
        launches = [line for line in repeated if line.startswith("cu") and "Launch" in line]
        if kind == "edited":
            assert launches[0].startswith("cudaGraphLaunch") and len(launches) > 1
        else:
            assert [line.split()[0] for line in launches] == ["cudaGraphLaunch"]
            copies = [line for line in repeated if line.startswith("cudaMemcpyAsync")]
            assert len(copies) == 2, "the tables go up, and the tokens come down"


@pytest.mark.slow
def test_steps_overlap(tiny_models: TinyModels, fake: dict[str, str]) -> None:
    said = run_in_fake(fake, overlap, *folders(tiny_models, "one-layer"))
    calls, alive = json.loads(said.splitlines()[-1])
    assert not any(alive)
    started = [line for line in calls if not line.startswith("cudaGetDevice")]
    assert [line.split()[0] for line in started if "EventSynchronize" not in line] == [
        *("cudaMemcpyAsync", "cudaEventRecord"),  # the tables
        "cudaMemcpyAsync",  # the tokens of the step before
        "cudaGraphLaunch",
        *("cudaMemcpyAsync", "cudaEventRecord"),  # the chosen tokens
    ]
    sizes = [line.split()[2:5] for line in started if line.startswith("cudaMemcpyAsync")]
    assert sizes == [
        ["pinned", "to", "device"],
        ["device", "to", "device"],
        ["device", "to", "pinned"],
    ]


def test_other_steps_cost_no_graph(tiny_models: TinyModels, fake: dict[str, str]) -> None:
    counts = json.loads(run_in_fake(fake, mixed, *folders(tiny_models, "one-layer")))
    assert counts == [[0, 0]] * 2 + [[1, 1]] * 2 + [[0, 1]] * 4


@pytest.mark.slow
def test_graphs_go_where_memory_lacks(tiny_models: TinyModels, fake: dict[str, str]) -> None:
    made, left = json.loads(run_in_fake(fake, drop_and_grow, *folders(tiny_models, "one-layer")))
    assert made >= 6 and left == 1


@pytest.mark.slow
def test_a_refused_graph_costs_no_step(tiny_models: TinyModels, fake: dict[str, str]) -> None:
    found = json.loads(run_in_fake(fake, refused, *folders(tiny_models, "one-layer")))
    warned = [(name, words) for name, words in found if words]
    assert len(warned) >= 3
    for _, words in warned:
        assert len(words) == 1 and "get no CUDA graph, and are slower: " in words[0]
        assert "\n" not in words[0]


def test_nothing_is_allocated_in_capture(tiny_models: TinyModels, fake: dict[str, str]) -> None:
    said = run_in_fake(fake, allocate_in_capture, *folders(tiny_models, "one-layer"))
    (words,) = json.loads(said)
    assert words.startswith(
        "steps of 4 tokens get no CUDA graph, and are slower: cudaMalloc failed"
    )


@pytest.mark.slow
@pytest.mark.parametrize("is_right", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_script_that_checks_a_gpu(
    tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path, is_right: bool
) -> None:
    library, weights = folders(tiny_models, "one-layer")
    checks = tmp_path / "checks" / "tiny"
    (checks / "cuda").mkdir(parents=True)
    (checks / "cuda" / "library").symlink_to(library)
    (checks / "cuda" / "weights").symlink_to(weights)
    exact = tiny_models.runner("one-layer", "reference").logits(TOKENS)
    np.save(checks / "logits.npy", exact if is_right else exact[::-1])
    said = run_in_fake(fake, check_script, str(tmp_path)).splitlines()
    assert said[1] == "rows alone, together and started early: the same bits"
    wrong = "the logits are not those of the reference"
    assert said[2:] == (["all is right", "0"] if is_right else [wrong, "1"])
