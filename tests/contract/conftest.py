"""One server for all clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from contract_server import contract_server

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Clients of others leave connections to the garbage collector. Where the client would close
    them, it may find the socket first. (The server's sockets are in another process.)"""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def address(default_model: object) -> Iterator[str]:
    with contract_server() as found:
        yield found
