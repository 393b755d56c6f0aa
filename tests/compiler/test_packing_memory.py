"""A model file does not stay in memory beside the weights that were packed from it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

SMAPS = Path("/proc/self/smaps")
tells = pytest.mark.skipif(not SMAPS.exists(), reason="this system does not tell")


def resident(path: Path) -> int:
    """Bytes of the mapped file that are in this process' memory."""
    lines = iter(SMAPS.read_text().splitlines())
    total = 0
    for line in lines:
        if line.endswith(f" {path}"):
            total += next(int(one.split()[1]) for one in lines if one.startswith("Rss:"))
    return 1024 * total


@pytest.mark.one_of(9)
@pytest.mark.parametrize("kernels", ["portable", "vnni", "reference"])
@pytest.mark.parametrize("kind", ["BF16", "F16", "Q8_0"])
def test_packing_takes_little_memory(tmp_path: Path, kernels: str, kind: str) -> None:
    shape = TinyShape(layers=1, hidden=2048, intermediate=6144)
    path = write_tiny_model(tmp_path / "tiny.gguf", kinds={"": kind}, shape=shape)
    file = GGUFFile.open(path)
    plan = read_gguf(file.metadata, file.tensors)
    largest = len(file.tensors["blk.0.ffn_up.weight"].data)
    assert largest == max(len(one.data) for one in file.tensors.values())
    tracemalloc.start()
    try:
        pack_weights(plan, backend_of(kernels), file.tensors, tmp_path, lambda _: None)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most <= 1.5 * largest


@tells
def test_what_was_read_is_given_back(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    tensor = GGUFFile.open(path).tensors["token_embd.weight"]
    before = tensor.data.tobytes()
    assert resident(path) >= len(before)
    tensor.give_back()
    assert resident(path) == 0
    assert tensor.data.tobytes() == before


@tells
def test_packing_leaves_nothing_of_the_file_behind(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    file = GGUFFile.open(path)
    plan = read_gguf(file.metadata, file.tensors)
    assert resident(path) > 0
    pack_weights(plan, backend_of("vnni"), file.tensors, tmp_path, lambda _: None)
    assert resident(path) == 0
    assert file.tensors["token_embd.weight"].data.any()
