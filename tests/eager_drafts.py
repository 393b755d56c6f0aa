"""Engine cores that draft in every step they can, whatever that costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.opening import open_engine
from mlc_llm.serve.sync_engine import SyncMLCEngine


class Always:
    """Drafts as much as is offered, up to `most` tokens a row."""

    patience = 0

    def __init__(self, most: int, *, may_fail: bool) -> None:
        self.most, self.may_fail = most, may_fail

    def choose(
        self, offers: Sequence[tuple[int, float]], cost: Callable[[int, int], float]
    ) -> list[int]:
        return [min(offered, self.most) for offered, _ in offers]

    def learn(self, rows: int, drafted: int, seconds: float) -> None:
        """Learns nothing."""

    def found_nothing(self) -> None:
        """Looks again in the next step."""

    def failed(self) -> None:
        assert self.may_fail, "drafting failed"


def draft_always(core: EngineCore, most: int, *, may_fail: bool = False) -> None:
    """Without a drafter the core stays as it is. may_fail: a drafter that raises is expected."""
    if core._steps.speculator is not None:
        core._steps.speculator.lengths = Always(most, may_fail=may_fail)


def opened(
    model: str, config: EngineConfig, callback: Any = None
) -> tuple[SyncMLCEngine, EngineCore]:
    """An engine, and the core inside it. callback: see `request_stream_callback`."""
    cores: list[EngineCore] = []

    class Seen(EngineCore):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            cores.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_engine, "EngineCore", Seen)
        engine = SyncMLCEngine(model, "cpu", engine_config=config, request_stream_callback=callback)
    (core,) = cores
    return engine, core
