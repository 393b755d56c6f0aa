"""The package's logger: silent by import, warnings once set up, everything with debug."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mlc_llm.support.logging import LOGGER_NAME, set_up


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger(LOGGER_NAME)
    before = (logger.level, list(logger.handlers), logger.propagate)
    yield
    logger.setLevel(before[0])
    logger.handlers, logger.propagate = before[1:]


def test_warnings_only_then_all_and_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("mlc_llm.somewhere")
    set_up()
    logger.info("unseen")
    logger.warning("seen")
    set_up(debug=True)
    logger.debug("detail")
    err = capsys.readouterr().err
    assert err.splitlines() == [
        "WARNING mlc_llm.somewhere: seen",
        "DEBUG mlc_llm.somewhere: detail",
    ]
