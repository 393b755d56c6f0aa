"""Kernels that are launched while the one before them still computes (programmatic dependent
launch): what a launch costs is hidden behind it. GPUs from compute capability 9.0 on can do it.

Each kernel first waits until the kernels before it have ended, and all that they have written is
seen. Then it lets the next one begin, whose blocks find room when its own become fewer. So there
are never more than two under way, and none sees anything that it would not see otherwise.

How kernels are launched stands in `device.bin`. A driver that refuses it can be given plain
launches: `MLC_LLM_CUDA_EARLY_LAUNCH=0`. The kernels then wait for nothing.

Source: "Parallel Thread Execution ISA", griddepcontrol; "CUDA C++ Programming Guide".
"""

from __future__ import annotations

import os
import re

from mlc_llm.backends.cuda.architectures import architecture
from mlc_llm.backends.cuda.device_bin import DeviceModule, device_module, relaunched
from mlc_llm.errors import InvalidField

VARIABLE = "MLC_LLM_CUDA_EARLY_LAUNCH"
_TAG = b"tirx.use_programtic_dependent_launch"
"""TVM's name of it, as TVM spells it."""
_LEAST = (9, 0)
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
NEXT = 'asm volatile("griddepcontrol.launch_dependents;");'
_START = re.compile(r'(extern "C" __global__ void [^{;]*?\([^)]*\) \{)')


def has_early_launch(arch: str) -> bool:
    """Whether code for an architecture can be launched so."""
    return architecture(arch).capability >= _LEAST


def early(source: DeviceModule) -> DeviceModule:
    """CUDA source whose kernels wait, and are launched early."""
    code, count = _START.subn(rf"\1\n  {WAIT}\n  {NEXT}", source.code.decode())
    assert count == len(source.names), "each kernel has to wait"
    waiting = DeviceModule(source.format, source.table, source.names, code.encode())
    return relaunched(waiting, lambda tags: (_TAG, *tags))


def launched_as_wanted(data: bytes) -> bytes:
    """The bytes of a `device.bin`, with plain launches if the environment asks for that. Raises
    InvalidField for a setting that is not known."""
    if (wanted := os.environ.get(VARIABLE) or "1") not in ("0", "1"):
        raise InvalidField(VARIABLE, wanted, "use 0 or 1")
    if wanted == "1":
        return data
    plain = relaunched(device_module(data), lambda tags: tuple(t for t in tags if t != _TAG))
    return plain.to_bytes()
