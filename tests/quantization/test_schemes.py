"""The public tables: what can be loaded, with the facts of the code that loads it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from mlc_llm.loader.gguf_tensors import KINDS
from mlc_llm.model import MODELS
from mlc_llm.models.registry import check_architecture
from mlc_llm.quantization import QUANTIZATION
from mlc_llm.quantization.ggml_blocks import BLOCK_KINDS, unpack
from mlc_llm.quantization.group_schemes import SCHEMES
from mlc_llm.quantization.schemes import Quantization


def test_every_type_that_a_file_may_have_is_there_with_its_size() -> None:
    types = {name: one for name, one in QUANTIZATION.items() if isinstance(one, Quantization)}
    found = {name: (one.block_size, one.block_bytes) for name, one in types.items()}
    assert found == {name: (values, size) for name, values, size in KINDS.values()}
    assert all(one.name == name for name, one in QUANTIZATION.items())


@pytest.mark.parametrize("name", [name for name in BLOCK_KINDS if name in QUANTIZATION])
def test_groups_and_minima_are_those_of_unpacked_weights(name: str) -> None:
    scheme = QUANTIZATION[name]
    assert isinstance(scheme, Quantization)
    parts = unpack(name, np.zeros(scheme.block_bytes, np.uint8), (1, scheme.block_size))
    assert scheme.group_size == parts.group
    assert scheme.has_minimum == (parts.minimum is not None)


def test_the_schemes_of_mlc_llm_are_there() -> None:
    assert {name: QUANTIZATION[name] for name in SCHEMES} == SCHEMES


def test_bits_per_weight_count_scales_too() -> None:
    bits = {name: QUANTIZATION[name].bits_per_weight for name in ("F16", "Q8_0", "Q4_0", "Q4_K")}
    assert bits == {"F16": 16, "Q8_0": 8.5, "Q4_0": 4.5, "Q4_K": 4.5}
    with pytest.raises(FrozenInstanceError):
        QUANTIZATION["Q4_0"].name = "Q4_1"  # type: ignore[misc]


def test_models_are_the_architectures_that_files_may_name() -> None:
    for name in MODELS:
        assert check_architecture({"general.architecture": name}) == name
