"""Memory for what a library's functions compute (`WorkspaceInfo`). It is given back when steps have
become small: a prompt needs a thousand times as much as a token does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlc_llm.library.workspace_info import WorkspaceInfo

if TYPE_CHECKING:
    from mlc_llm.backends.device import Device, DeviceTensor, Scratch

ROWS_A_TOKEN = 2
"""Rows of logits behind a token, at most: it may be drawn from and scored."""
LARGE = 64
"""Tokens of a step from which on memory is worth giving back."""
PATIENCE = 16
"""Small steps behind a large one until that is done."""


class Workspaces:
    """Those of all functions of a library."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._all: list[Scratch] = []
        self._patience = 0
        """Small steps until memory is given back; 0: there is none to give."""

    def of(self, infos: Sequence[WorkspaceInfo], tokens: int) -> list[DeviceTensor]:
        """Those of a function. tokens: of a step, at most. Only what is used takes memory."""
        made = [
            self._device.scratch(
                one.unit_bytes * tokens * (ROWS_A_TOKEN if one.of_rows else 1) + one.fixed_bytes
            )
            for one in infos
        ]
        self._all += made
        return [one.tensor for one in made]

    def note(self, tokens: int) -> None:
        """A step with so many tokens comes. Nothing computes now."""
        if tokens >= LARGE:
            self._patience = PATIENCE
        elif self._patience:
            self._patience -= 1
            if not self._patience:
                for one in self._all:
                    one.give_back()
