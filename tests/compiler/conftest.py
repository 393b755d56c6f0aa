"""The tiny models of this folder's tests."""

from __future__ import annotations

import pytest
from tiny_models import TinyModels


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("tiny"))
