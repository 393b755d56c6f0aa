"""What CPU kernels keep of the layers that have a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlc_llm.backends.kept_states import KeptStates
from mlc_llm.backends.operands import StatePart
from mlc_llm.library.state_format import CHUNK, NUMBERS
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec

if TYPE_CHECKING:
    from mlc_llm.models.spec import Keeper, ModelSpec

CHUNKED = (GatedDeltaSpec, Mamba2Spec)
"""The mixers whose states change only every CHUNK tokens (`kernels/cpu/chunks.py`)."""


class ChunkedStates(KeptStates):
    """The parts of a state in the order of the kernels' arguments: inputs of the convolution, keys,
    changes, numbers and the base."""

    def kept(self, keeper: Keeper) -> tuple[StatePart, ...]:
        """See `KeptStates`."""
        if not isinstance(keeper, CHUNKED):
            return super().kept(keeper)
        convs, (heads, head_dim, size) = keeper.state_shapes
        key_heads = keeper.key_heads if isinstance(keeper, GatedDeltaSpec) else keeper.groups
        slots = convs, (key_heads, CHUNK, size), (heads, CHUNK, head_dim), (heads, NUMBERS)
        base = StatePart((heads, head_dim, size), by_chunk=True)
        return (*map(StatePart, slots), base)

    def state_chunk(self, spec: ModelSpec) -> int:
        """See `KeptStates`."""
        has_some = any(isinstance(keeper, CHUNKED) for _, keeper in spec.keepers)
        return CHUNK if has_some else 1
