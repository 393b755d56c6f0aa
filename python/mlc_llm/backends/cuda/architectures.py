"""The GPU architectures that kernels are compiled for, and which GPUs run their code.

Source: "CUDA C++ Programming Guide", compute capabilities and binary compatibility.
"""

from __future__ import annotations

from mlc_llm.errors import InvalidField
from mlc_llm.record import record


@record()
class Architecture:
    """One kind of machine code."""

    name: str
    capability: tuple[int, int]
    """The compute capability that it is made for."""
    only: bool = False
    """No other capability runs it. Else later ones with the same first number run it as well."""

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """A GPU of that compute capability runs this code."""
        if self.only:
            return capability == self.capability
        return capability[0] == self.capability[0] and capability >= self.capability


ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture("sm_80", (8, 0)),  # A100
        Architecture("sm_86", (8, 6)),  # RTX 30, A10
        Architecture("sm_89", (8, 9)),  # RTX 40, L4, L40
        Architecture("sm_90a", (9, 0), only=True),  # H100, H200
        Architecture("sm_100a", (10, 0), only=True),  # B200
    )
}


def architecture(name: str) -> Architecture:
    """Raises InvalidField for a name that is not in `ARCHITECTURES`."""
    found = ARCHITECTURES.get(name)
    if found is None:
        raise InvalidField("arch", name, f"use one of {', '.join(ARCHITECTURES)}")
    return found


def best_for(capability: tuple[int, int]) -> Architecture | None:
    """The latest architecture whose code runs on a GPU of that capability; None: there is none."""
    fitting = [one for one in ARCHITECTURES.values() if one.runs_on(capability)]
    return max(fitting, key=lambda one: one.capability, default=None)
