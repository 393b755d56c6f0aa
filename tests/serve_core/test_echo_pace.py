"""The echo engine takes as long as its name says."""

from __future__ import annotations

import pytest

from mlc_llm.errors import InvalidField
from mlc_llm.runtime.batch import Batch, BatchRow
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core import mock_echo
from mlc_llm.serve.core.mock_echo import EchoRunner, echo_config
from mlc_llm.serve.echo_model import EchoPace, echo_pace, is_echo


def test_a_name_has_the_pace() -> None:
    assert echo_pace("mock://echo") == EchoPace(0.0, 0.0)
    assert echo_pace("mock://echo?step_ms=20&prompt_ms=0.5") == EchoPace(0.02, 0.0005)
    assert is_echo("mock://echo?step_ms=20") and is_echo("mock://echo")
    assert not is_echo("mock://echoes") and not is_echo(None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mock://echo?speed=3", "step_ms and prompt_ms"),
        ("mock://echo?step_ms=-1", "range"),
        ("mock://echo?step_ms=nan", "range"),
        ("mock://echo?prompt_ms=fast", "type str"),
        ("mock://echo?prompt_ms=", "type str"),
    ],
)
def test_a_wrong_pace_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        echo_pace(name)


def test_a_step_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(mock_echo.time, "sleep", slept.append)
    runner = EchoRunner(echo_config(EngineConfig()), 256, EchoPace(0.02, 0.001))
    runner.add_sequence(1)
    runner.run(Batch([BatchRow(1, [1, 2, 3], (), 3)]))
    runner.run(Batch([BatchRow(1, [1], ())]))
    assert slept == pytest.approx([0.023, 0.02])
