"""Errors keep what they say when they are copied, and on the way to another process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from mlc_llm import errors
from mlc_llm.errors import ContextLengthExceeded, InvalidField, MissingKey, MLCError

PLAIN = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, MLCError) and "__init__" not in vars(kind)
    if not issubclass(kind, InvalidField)
]
ERRORS = [
    InvalidField("temperature", -1, "0 to 100"),
    MissingKey("messages", "content"),
    ContextLengthExceeded(50, 40, at_least=True),
    *(kind("words") for kind in PLAIN),
]
WAYS: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    lambda error: pickle.loads(pickle.dumps(error)),
]


@pytest.mark.parametrize("way", WAYS, ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_stays_what_it_is(error: MLCError, way: Callable[[Any], Any]) -> None:
    found = way(error)
    assert type(found) is type(error) and str(found) == str(error)
    assert vars(found) == vars(error) and found.args == error.args


def test_a_value_that_cannot_be_sent_is_shown() -> None:
    error = InvalidField("callback", lambda: None, "None")
    found = pickle.loads(pickle.dumps(error))
    assert str(found) == str(error) and "<lambda>" in found.value
