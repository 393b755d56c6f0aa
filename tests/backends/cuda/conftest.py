"""The stand-in for CUDA, built once."""

from __future__ import annotations

import pytest
from fake_cuda import COMPILER, build_fake


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes in which the stand-in is CUDA; see `fake_cuda.py`."""
    if COMPILER is None:
        pytest.skip("needs gcc, which builds the stand-in for CUDA")
    return build_fake(tmp_path_factory.mktemp("fake_cuda"))
