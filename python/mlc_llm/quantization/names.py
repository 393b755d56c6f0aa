"""The names that `--quantization` takes: MLC LLM's schemes, then GGUF's types in small letters."""

from __future__ import annotations

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.quantization.ggml_quantize import TARGETS
from mlc_llm.quantization.ggml_quantize import WEIGHTED as KINDS
from mlc_llm.quantization.group_schemes import SCHEMES, Scheme

AWQ = Scheme("q4f16_autoawq", "float16")
"""Its matrices are those of a folder that AWQ has quantised; the rest is float16."""
AWQ_GROUP = 128
"""Weights of a row that share a scale."""
FOLDERS = {**SCHEMES, AWQ.name: AWQ, "q4f16_awq": AWQ}
"""What makes a folder of MLC LLM, by all names of it."""
NAMES = (*FOLDERS, *(kind.lower() for kind in TARGETS))
AT_LOAD = tuple(name for name in NAMES if FOLDERS.get(name) is not AWQ)
"""Those that quantise any model, also when it is loaded."""
WEIGHTED = (
    *(name for name, one in SCHEMES.items() if one.bits),
    *(kind.lower() for kind in KINDS),
)
"""Those whose scales the importance of columns can choose."""
_ENDS = ("token_embd.weight", "output.weight")
_ROUTER = "ffn_gate_inp.weight"
_ROUNDED = "it rounds activations to 8-bit floats, for kernels of GPUs"
_OF_FOLDERS = (
    "it takes the matrices of a Hugging Face folder in 8-bit floats, for kernels of GPUs; such a "
    "folder runs as it is"
)
_NOT_MADE = {
    "q4f16_ft": "its words are in an order for kernels of GPUs; q4f16_1 has 4 bits as well",
    "e5m2_e5m2_f16": f"{_ROUNDED}; q8_0 has 8 bits as well",
    "e4m3_e4m3_f16": f"{_ROUNDED}; q8_0 has 8 bits as well",
    "e4m3_e4m3_f16_max_calibrate": f"{_ROUNDED}; q8_0 has 8 bits as well",
    "fp8_e4m3fn_bf16_block_scale": _OF_FOLDERS,
    "fp8_e4m3fn_bf16_block_scale_static_activation": _OF_FOLDERS,
}
"""Names of MLC LLM that are refused, why, and what there is instead."""


def check_name(quantization: str) -> None:
    """Raises UserError for a name of MLC LLM that is not made here, InvalidField with all names
    for any other."""
    if quantization in _NOT_MADE:
        raise UserError(f"quantization = {quantization!r}: {_NOT_MADE[quantization]}")
    if quantization not in NAMES:
        raise InvalidField("quantization", quantization, "one of " + ", ".join(NAMES))


def changes(quantization: str, tensor: str) -> bool:
    """Whether a matrix, by GGUF's name of it, is quantised at all. Routers never are: they are
    small, and a wrong expert costs more than a wrong number. (MLC LLM keeps them too.)"""
    scheme = SCHEMES.get(quantization)
    kept = scheme is not None and not scheme.ends and tensor in _ENDS
    return not kept and not tensor.endswith(_ROUTER)
