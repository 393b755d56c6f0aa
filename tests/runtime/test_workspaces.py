"""Memory of the runtime's for what a step computes: enough, and given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tiny_models import TinyModels

from mlc_llm.library.signatures import FORWARD
from mlc_llm.library.workspace_info import WorkspaceInfo
from mlc_llm.runtime import workspaces
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.workspaces import LARGE, PATIENCE, Workspaces

TOKENS = list(range(3, 3 + LARGE))


class FakeScratch:
    """Memory that counts how often it is given back."""

    def __init__(self, size: int) -> None:
        self.tensor: Any = size
        self.given_back = 0

    def give_back(self) -> None:
        self.given_back += 1


class FakeDevice:
    def __init__(self) -> None:
        self.made: list[FakeScratch] = []

    def scratch(self, size: int) -> FakeScratch:
        self.made.append(FakeScratch(size))
        return self.made[-1]


def test_sizes() -> None:
    device: Any = FakeDevice()
    infos = [WorkspaceInfo(10, False), WorkspaceInfo(3, True), WorkspaceInfo(4, False, 48)]
    assert Workspaces(device).of(infos, 100) == [1000, 600, 448]


def steps(made: Workspaces, *tokens: int) -> None:
    for one in tokens:
        made.note(one)


def test_memory_is_given_back_behind_large_steps() -> None:
    device: Any = FakeDevice()
    made = Workspaces(device)
    made.of([WorkspaceInfo(10, of_rows=False)] * 2, 100)
    first, second = device.made
    steps(made, *[LARGE - 1] * (2 * PATIENCE))
    assert first.given_back == 0, "no step was large"
    steps(made, LARGE, *[1] * (PATIENCE - 1), LARGE, *[1] * (PATIENCE - 1))
    assert first.given_back == 0, "a large step came before the time was up"
    steps(made, 1)
    assert first.given_back == second.given_back == 1
    steps(made, *[1] * (2 * PATIENCE))
    assert first.given_back == 1, "there is nothing to give"


@pytest.mark.parametrize("kernels", ["portable", "reference"])
def test_given_back_memory_changes_no_bit(
    tiny_models: TinyModels, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Workspaces] = []
    usual = Workspaces.of

    def of(self: Workspaces, *args: Any) -> Any:
        given.append(self)
        return usual(self, *args)

    monkeypatch.setattr(Workspaces, "of", of)
    runner = tiny_models.runner("plain", kernels)
    before = runner.logits(TOKENS), runner.logits(TOKENS, chunk=1)
    for one in given[0]._all:
        one.give_back()
    after = runner.logits(TOKENS), runner.logits(TOKENS, chunk=1)
    assert [one.tobytes() for one in after] == [one.tobytes() for one in before]


def test_which_functions_have_some(tiny_models: TinyModels) -> None:
    found = tiny_models.runner("plain", "portable").metadata.workspaces
    assert list(found) == [FORWARD]
    assert {one.of_rows for one in found[FORWARD]} == {False, True}
    assert all(one.unit_bytes > 0 for one in found[FORWARD])


def test_too_little_memory_is_refused(
    tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels would write behind its end."""
    usual = Workspaces.of

    def of(self: Workspaces, infos: Sequence[WorkspaceInfo], tokens: int) -> Any:
        return usual(self, infos, 3)

    monkeypatch.setattr(workspaces.Workspaces, "of", of)
    runner: ModelRunner = tiny_models.runner("plain", "portable")
    assert runner.logits([5, 6, 7]).shape[0] == 3
    with pytest.raises(Exception, match="would occupy"):
        runner.logits([5, 6, 7, 8])
