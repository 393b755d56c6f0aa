"""The names that `--quantization` takes: MLC LLM's schemes, then GGUF's types in small letters."""

from __future__ import annotations

from mlc_llm.errors import InvalidField
from mlc_llm.quantization.ggml_quantize import TARGETS
from mlc_llm.quantization.group_schemes import SCHEMES
from mlc_llm.quantization.weighted_quantize import HALVES

NAMES = (*SCHEMES, *(kind.lower() for kind in TARGETS))
WEIGHTED = (
    *(name for name, one in SCHEMES.items() if one.bits),
    *(kind.lower() for kind in HALVES),
)
"""Those whose scales the importance of columns can choose."""
_ENDS = ("token_embd.weight", "output.weight")
_ROUTER = "ffn_gate_inp.weight"


def check_name(quantization: str) -> None:
    """Raises InvalidField with all names."""
    if quantization not in NAMES:
        raise InvalidField("quantization", quantization, "one of " + ", ".join(NAMES))


def changes(quantization: str, tensor: str) -> bool:
    """Whether a matrix, by GGUF's name of it, is quantised at all. Routers never are: they are
    small, and a wrong expert costs more than a wrong number. (MLC LLM keeps them too.)"""
    scheme = SCHEMES.get(quantization)
    kept = scheme is not None and not scheme.ends and tensor in _ENDS
    return not kept and not tensor.endswith(_ROUTER)
