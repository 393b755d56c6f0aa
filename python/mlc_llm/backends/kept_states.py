"""What a backend's kernels keep of the layers that have a state: a part of `base.py` and `ops.py`.

No TVM is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mlc_llm.backends.operands import StatePart

if TYPE_CHECKING:
    from mlc_llm.models.spec import Keeper, ModelSpec


class KeptStates(Protocol):
    """Backends and their operations begin with this: every step writes all of a state anew."""

    def kept(self, keeper: Keeper) -> tuple[StatePart, ...]:
        """What this part of a layer keeps of a sequence, a tensor each."""
        return tuple(StatePart(shape) for shape in keeper.state_shapes)

    def state_chunk(self, spec: ModelSpec) -> int:
        """Tokens behind which bases change (`library/signatures.py`); 1 if there are none."""
        return 1
