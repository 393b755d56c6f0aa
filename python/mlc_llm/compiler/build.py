"""From a model's shape to a model library's three files, through stock TVM and nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend import nn

from mlc_llm.compiler.target import target_for
from mlc_llm.errors import CompileError
from mlc_llm.kernels.attention import query_tile
from mlc_llm.kernels.attention_section import SECTION
from mlc_llm.kernels.coarse_attention import coarse_tile, has_coarse_attention
from mlc_llm.kernels.edit_logits import WORD
from mlc_llm.kernels.isa import Isa
from mlc_llm.kernels.kv_pages import PAGE
from mlc_llm.model_lib import (
    BYTECODE_FILE,
    COPY_PAGES,
    EDIT_LOGITS,
    FORWARD,
    KERNELS_FILE,
    METADATA_FILE,
    SAMPLE,
    TOP_TOKENS,
    VERSION,
    KVInfo,
    Metadata,
    ParamInfo,
)
from mlc_llm.models.config import ModelConfig
from mlc_llm.models.registry import MODELS


def build_library(
    config: ModelConfig, isa: Isa, folder: Path, *, triple: str | None = None
) -> None:
    """Compiles into `folder`, which exists; for this system, or for that of an LLVM triple.

    Raises CompileError with TVM's own message.
    """
    model = MODELS[config.architecture](config, isa, isa.kv_dtype)
    target = target_for(isa, triple)
    try:
        module, params = model.export_tvm(_specs(config, isa))
        executable = relax.build(module, target=target)
        executable.mod.write_to_file(str(folder / BYTECODE_FILE))
        (kernels,) = (m for m in executable.mod.imports if m.kind == "llvm")
        kernels.write_to_file(str(folder / KERNELS_FILE))
    except Exception as error:
        raise CompileError(f"TVM could not build the model library: {_tail(error)}") from error
    metadata = Metadata(
        version=VERSION,
        architecture=config.architecture,
        isa=isa.name,
        target=str(target),
        tvm_version=tvm.__version__,
        vocab_size=config.tokens,
        padded_vocab=model.padded_vocab,
        has_coarse_rows=model.has_coarse_rows,
        has_tiles=isa.tiles,
        has_window=isa.windowed,
        kv=_kv_info(config, isa),
        params=tuple(ParamInfo(n, tuple(map(int, p.shape)), str(p.dtype)) for n, p in params),
        sha256={name: file_sha256(folder / name) for name in (BYTECODE_FILE, KERNELS_FILE)},
    )
    (folder / METADATA_FILE).write_text(metadata.to_json(), encoding="utf-8")


def file_sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _kv_info(config: ModelConfig, isa: Isa) -> KVInfo:
    heads, is_coarse = (config.heads, config.kv_heads), has_coarse_attention(config.head_dim, isa)
    return KVInfo(
        num_layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        page_size=PAGE,
        dtype=isa.kv_dtype,
        query_tile=query_tile(*heads, isa),
        coarse_tile=coarse_tile(*heads) if is_coarse else query_tile(*heads, isa),
        section_pages=SECTION,
    )


def _specs(config: ModelConfig, isa: Isa) -> dict[str, Any]:
    """Argument shapes of the library's functions, as `model_lib.py` documents them."""
    ints, floats = _tensor_of("int32"), _tensor_of("float32")
    half = config.head_dim // 2
    page = nn.spec.Tensor(["p", config.kv_heads, 2, PAGE * config.head_dim], isa.kv_dtype)
    pages = [page] * config.layers
    padded = MODELS[config.architecture](config, isa, isa.kv_dtype).padded_vocab
    plain = {"param_mode": "none", "effect_mode": "none"}
    return {
        FORWARD: {
            "tokens": ints("m"),
            "rope": floats("r", 2, half),
            "slot": ints("m"),
            "position": ints("places" if isa.windowed else "m"),
            "tiles": ints("t", 3),
            "page_ids": ints("n"),
            "window": ints(2),
            "coarse_rows": ints(1),
            "logit_rows": ints("s"),
            "pages": pages,
            "$": {"param_mode": "packed", "effect_mode": "none"},
        },
        TOP_TOKENS: {"logits": floats("s", padded), "rows": ints("r"), "$": plain},
        EDIT_LOGITS: {
            "place": ints("e", 2),
            "number": floats("e", 3),
            "masked": ints("r"),
            "allowed": ints("r", -(-config.tokens // WORD)),
            "logits": floats("s", padded),
            "$": plain,
        },
        SAMPLE: {
            "logits": floats("s", padded),
            "options": floats("s", 4),
            "top_k": ints("s"),
            "$": plain,
        },
        COPY_PAGES: {"source": ints("n"), "target": ints("n"), "pages": pages, "$": plain},
    }


def _tensor_of(dtype: str) -> Any:
    return lambda *shape: nn.spec.Tensor(list(shape), dtype)


def _tail(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:] or type(error).__name__
