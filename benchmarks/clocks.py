"""Measures how much time a runner spends in compiled functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mlc_llm.backends.device import DeviceTensor
from mlc_llm.runtime.library import Library


class Clock:
    """A compiled function. All clocks add up their time in `Clock.seconds`."""

    seconds = 0.0

    def __init__(self, inner: Callable[..., object]) -> None:
        self._inner = inner

    def __call__(self, *args: object) -> object:
        start = time.perf_counter()
        try:
            return self._inner(*args)
        finally:
            Clock.seconds += time.perf_counter() - start


class ClockedLibrary(Library):
    """A library whose functions are clocks. A clock takes less than a microsecond a call."""

    def clock(self, inner: Callable[..., object]) -> Clock:
        return Clock(inner)

    def __getitem__(self, name: str) -> Clock:
        return self.clock(super().__getitem__(name))

    def with_params(
        self,
        name: str,
        params: Sequence[DeviceTensor],
        tokens: int = 0,
        kept: Sequence[DeviceTensor] = (),
    ) -> Clock:
        return self.clock(super().with_params(name, params, tokens, kept))
