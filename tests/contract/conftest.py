"""One server for all clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract_server import contract_server


@pytest.fixture(scope="session")
def address(default_model: object) -> Iterator[str]:
    with contract_server() as found:
        yield found
