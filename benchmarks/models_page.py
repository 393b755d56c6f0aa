"""docs/models.md, made of the registry, the tables of formats and the figures that are kept.

Nothing is measured here: `models.py` does it. Neither torch nor TVM is imported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
from encoders_page import encoders_section, read_encoder_figures
from images_page import images_section, read_image_figures
from kept_figures import facts_text
from page_table import NOT_MEASURED, table
from typing_extensions import NotRequired

from mlc_llm.backends.cpu.isa import AVX2, ISAS, Isa
from mlc_llm.backends.registry import backend_of
from mlc_llm.errors import UnsupportedModel
from mlc_llm.loader.gguf_tensors import KINDS, OTHER_KINDS
from mlc_llm.model_files.mlc_names import mlc_names
from mlc_llm.model_files.quantized import target_of
from mlc_llm.models.registry import ROWS, Architecture, read_config
from mlc_llm.models.weight_plan import FLOAT_KINDS
from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.quantization.float8_blocks import KIND as FLOAT8
from mlc_llm.quantization.group_schemes import SCHEMES
from mlc_llm.quantization.zero_point_blocks import KIND as ZERO_POINT

ROOT = Path(__file__).resolve().parents[1]
PAGE, FIGURES = ROOT / "docs" / "models.md", ROOT / "benchmarks" / "models.json"
PEER = "llama.cpp"
SHAPE = (32, 4096)
"""Of the matrix whose packed bits are counted."""
FOLDERS: dict[tuple[str, str], str] = {
    **{("plain", kind): kind for kind in FLOAT_KINDS},
    ("fp8", "F8_E4M3, a scale for each block or row, or one for all"): FLOAT8,
    ("fp8", "F8_E4M3, blocks whose columns are no multiple of 32"): "F32",
    ("gptq", "4 bits"): ZERO_POINT,
    ("gptq", "4 bits, groups in the order of importance (`desc_act`)"): "F32",
    ("awq", "4 bits"): ZERO_POINT,
    ("compressed-tensors", "4 bits (`pack-quantized`)"): ZERO_POINT,
    ("compressed-tensors", "F8_E4M3 (`float-quantized`)"): FLOAT8,
    ("mxfp4", "experts in MXFP4 blocks (gpt-oss)"): "MXFP4",
}
"""`quant_method` and type of a matrix in a Hugging Face folder -> the tensor type it becomes."""


class Compared(TypedDict):
    """Reference kernels against Transformers, or why there was nothing to compare."""

    error: NotRequired[float]
    greedy: NotRequired[bool]
    refused: NotRequired[str]


class Quantized(TypedDict):
    """CPU kernels against float32, on the same quantised weights."""

    name: str
    kernels: str
    kl: float


class Measured(TypedDict):
    """The figures of one architecture."""

    measured: dict[str, str]
    """Date, processor, versions."""
    config: dict[str, JsonValue]
    """config.json of the random model."""
    folder: Compared
    gguf: Compared
    peer: NotRequired[Compared]
    """Of llama.cpp itself, which runs the GGUF file."""
    quantized: Quantized | None
    speed: dict[str, float] | None
    """Decoded tokens a second by program, ours as "mlc_llm", and those of prompts as
    "mlc_llm, prompts"; None: not measured."""


Figures = dict[str, Measured]
"""By the class in config.json."""


def read_figures() -> Figures:
    if not FIGURES.exists():
        return {}
    found: Figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def write_figures(figures: Figures) -> None:
    """In the order of the registry, a line for each field."""
    parts = []
    for row in ROWS:
        if row.config in figures:
            fields = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in figures[row.config].items()]
            parts.append(f"{json.dumps(row.config)}: {{\n" + ",\n".join(fields) + "\n}")
    FIGURES.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def lacking(config: Mapping[str, JsonValue]) -> str:
    """What the model of a config.json needs and CPU kernels lack; empty: nothing."""
    try:
        backend_of(AVX2.name).check(read_config(config))
    except UnsupportedModel as error:
        return str(error).split(", which")[0].split(" needs ")[-1]
    return ""


def page(figures: Figures) -> str:
    """The whole page."""
    parts = [
        INTRODUCTION, table(ARCHITECTURE_HEAD, [architecture(row, figures) for row in ROWS]),
        "\n".join(notes(figures)), encoders_section(read_encoder_figures()),
        images_section(read_image_figures()),
        TENSOR_TYPES, table(kind_head("in a file"), gguf_kinds()),
        FOLDER_TYPES, table(("method", "matrices", *kernel_names()), folder_kinds()),
        MLC_TYPES.format(refused=not_of_mlc()), table(kind_head("in a folder"), schemes()),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


# --- architectures --------------------------------------------------------------------------

ARCHITECTURE_HEAD = (
    "GGUF", "class in config.json", "kernels", "error, GGUF", "error, folder", f"error, {PEER}",
    "same greedy text", "KL, quantised", f"tok/s, {PEER}'s; of prompts",
)  # fmt: skip


def architecture(row: Architecture, figures: Figures) -> list[str]:
    """The cells of one architecture."""
    names = [f"`{row.gguf}`", f"`{row.config}`"]
    if row.config not in figures:
        return [*names, *[NOT_MEASURED] * (len(ARCHITECTURE_HEAD) - len(names))]
    found = figures[row.config]
    lacks = lacking(found["config"])
    kernels = f"reference only: needs {lacks}" if lacks else "CPU, reference"
    files = (found["gguf"], found["folder"])
    errors = [*map(_error, files), _error(found["peer"]) if "peer" in found else NOT_MEASURED]
    return [*names, kernels, *errors, _greedy(files), _kl(found, lacks), _speed(found)]


def _error(found: Compared) -> str:
    return f"{found['error']:.1e}" if "error" in found else "refused"


def _greedy(files: Sequence[Compared]) -> str:
    return "yes" if all(one["greedy"] for one in files if "greedy" in one) else "**no**"


def _kl(found: Measured, lacks: str) -> str:
    if lacks:
        return "–"
    one = found["quantized"]
    return f"{one['kl']:.1e} ({one['name']}, {one['kernels']})" if one else NOT_MEASURED


def _speed(found: Measured) -> str:
    speed = found["speed"]
    if not speed:
        return NOT_MEASURED
    names = ("mlc_llm", PEER, "mlc_llm, prompts", f"{PEER}, prompts")
    return "{:.0f}, {:.0f}; {:.0f}, {:.0f}".format(*(speed[name] for name in names))


def notes(figures: Figures) -> Iterator[str]:
    """Where the figures come from (the first without names: most of them), and what the converter
    refused."""
    seen: dict[str, list[str]] = {}
    for row in ROWS:
        if row.config in figures:
            text = facts_text(figures[row.config]["measured"])
            seen.setdefault(text, []).append(row.config)
    most = max(seen.values(), key=len, default=[])
    for text, classes in sorted(seen.items()):
        whom = "" if classes is most else f" {', '.join(classes)}:"
        yield f"* Measured:{whom} {text}."
    for row in ROWS:
        found = figures.get(row.config)
        if found and (refused := found["gguf"].get("refused")):
            yield f"* Not converted: {row.config}: `{refused}`."
        if found and (refused := found.get("peer", {}).get("refused")):
            yield f"* Refused by {PEER}: {row.config}: `{refused}`."


# --- formats --------------------------------------------------------------------------------


def kernel_groups() -> dict[tuple[bool, bool], list[Isa]]:
    """CPU kernels, by what decides how weights are packed."""
    found: dict[tuple[bool, bool], list[Isa]] = {}
    for isa in ISAS.values():
        found.setdefault((isa.half, isa.amx_tiles), []).append(isa)
    return found


def kernel_names() -> list[str]:
    return [", ".join(isa.name for isa in isas) for isas in kernel_groups().values()]


def kind_head(where: str) -> list[str]:
    return ["type", "loads", f"bits {where}", *kernel_names()]


def packed_bits(kind: str) -> list[str]:
    """Bits of a weight in memory, with its share of the scales, for each group of kernels."""
    return [_bits(_packed_bits(kind, isas[0].name)) for isas in kernel_groups().values()]


def _packed_bits(kind: str, kernels: str) -> float:
    shape, dtype = backend_of(kernels).layout(kind).shape(*SHAPE)
    return 8 * math.prod(shape) * np.dtype(dtype).itemsize / math.prod(SHAPE)


def _bits(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def gguf_kinds() -> list[list[str]]:
    rows = [
        [f"`{kind}`", "yes", _bits(8 * size / values), *packed_bits(kind)]
        for kind, values, size in KINDS.values()
    ]
    nothing = ["–"] * len(kernel_names())
    return rows + [[f"`{kind}`", "no", "–", *nothing] for kind in OTHER_KINDS.values()]


def folder_kinds() -> list[list[str]]:
    return [[f"`{how}`", what, *packed_bits(kind)] for (how, what), kind in FOLDERS.items()]


def not_of_mlc() -> str:
    """Architectures that are refused in folders of MLC LLM."""
    found = []
    for row in ROWS:
        try:
            mlc_names(row.gguf, ())
        except UnsupportedModel:
            found.append(row.config)
    return ", ".join(found) or "none"


def schemes() -> list[list[str]]:
    return [
        [f"`{name}`", "yes", _bits(one.bits_per_weight), *packed_bits(target_of(name).kind)]
        for name, one in SCHEMES.items()
    ]


INTRODUCTION = """# Models and formats

`benchmarks/models.py` writes this page, from the registry, the tables of formats and the figures
in `models.json`, `encoders.json` and `images.json` beside it. `--only NAME` measures one
architecture, `--render` none.

## Architectures

Each architecture is measured on one small model of Transformers with random weights. (Transformers
has no RWKV-7: its formulas stand in its place, in float64. The author's own package gives the same
logits to 1e-5.)

* *kernels*: the CPU kernels compute it, or only the slow reference kernels (`--kernels reference`)
  do, and what the model needs that the others lack.
* *error*: the largest difference of a logit from Transformers' in float32, as a part of the largest
  logit, with the reference kernels. The GGUF file is made by llama.cpp's converter, the folder by
  Transformers.
* *error, llama.cpp*: the same of llama.cpp itself, which runs that GGUF file in float32. It takes
  GELU from a table of float16; without that table its errors are like the others.
* *same greedy text*: the 64 tokens after a prompt are those of Transformers, from both files.
* *KL, quantised*: the mean KL divergence, in nats, of the CPU kernels' next-token probabilities
  from those of the reference kernels, on the same quantised copy of the weights. Random weights
  tell about the arithmetic only; `performance.md` has the figures of a trained model.
* *tok/s*: decoded tokens a second behind 128 others, ours and llama.cpp's; then those of prompts of
  512. Medians of three, 2 threads, the same Q4_0 file with random weights: hidden size about 1,024,
  12 layers or more, 300 tokens in the vocabulary (`models.py --speed`). `performance.md` has
  models of real shapes and sizes."""
TENSOR_TYPES = """## Tensor types of GGUF files

Split files load too. A type that does not load is refused by its name. The columns of kernels are
the bits of a weight in memory, with its share of scales and minima. The reference kernels keep
every weight in 32 bits."""
FOLDER_TYPES = """## Hugging Face folders

`config.json` with `model.safetensors` or its shards. The method is
`quantization_config.quant_method` of config.json; any other method is refused by its name. The
columns of kernels are the bits of a weight in memory."""
MLC_TYPES = """## Folders of MLC LLM

`mlc-chat-config.json` with shards. Refused by name: {refused}. The other architectures are read by
MLC LLM's rules for names; none was measured from such a folder."""
