"""Compiles a model library from a model's spec, with stock TVM and a backend."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm
from tvm.relax.frontend import nn

from mlc_llm.backends.base import Backend
from mlc_llm.backends.ops import Ops
from mlc_llm.compiler.infos import (
    adapted_infos,
    eagle_group,
    encoder_info,
    kv_info,
    sight_info,
    state_infos,
    tower_info,
)
from mlc_llm.compiler.methods import export
from mlc_llm.errors import CompileError, MLCError
from mlc_llm.library.metadata import METADATA_FILE, VERSION, Metadata, ParamInfo
from mlc_llm.models.decoder import Decoder
from mlc_llm.models.eagle import EagleDecoder
from mlc_llm.models.encoder import Encoder
from mlc_llm.models.image_tower import ImageTower
from mlc_llm.models.medusa import Medusa
from mlc_llm.models.spec import ModelSpec


def build_library(
    spec: ModelSpec, backend: Backend, folder: Path, *, triple: str | None = None,
    libraries: Path | None = None,
) -> None:  # fmt: skip
    """Compile into `folder`, which must exist. triple: an LLVM triple of another system. libraries:
    a folder of libraries; what they have that is the same is not compiled again.

    Raises UnsupportedModel for what the backend cannot compute, InvalidField for a triple that its
    kernels are not for, CompileError with TVM's message.
    """
    backend.check(spec)
    ops = backend.ops()
    model = _module(spec, ops)
    kv, adapted = kv_info(spec, backend, ops), adapted_infos(spec, backend)
    with _compiling():
        module, params = export(model, kv, adapted)
        compiled = backend.compile(module, folder, triple, libraries)
    metadata = Metadata(
        version=VERSION,
        architecture=spec.architecture,
        backend=backend.name,
        target=compiled.target,
        tvm_version=tvm.__version__,
        vocab_size=spec.tokens,
        padded_vocab=ops.padded_rows(spec.vocab),
        hidden_size=spec.hidden,
        has_fast_tokens=ops.has_fast_tokens and not spec.recurrent_layers,
        is_fast=ops.is_fast,
        requires=compiled.requires,
        workspaces=dict(compiled.workspaces),
        has_window=spec.has_sink_queries,
        ropes=len(spec.ropes),
        kv=kv,
        states=state_infos(spec, ops),
        state_chunk=ops.state_chunk(spec),
        adapted=adapted,
        encoder=encoder_info(spec),
        shards=spec.shards,
        tower=tower_info(spec),
        sight=sight_info(spec),
        eagle_group=eagle_group(spec),
        medusa_heads=0 if spec.medusa is None else spec.medusa.heads,
        params=tuple(ParamInfo(n, tuple(map(int, p.shape)), str(p.dtype)) for n, p in params),
        sha256={name: file_sha256(folder / name) for name in compiled.files},
    )
    (folder / METADATA_FILE).write_text(metadata.to_json(), encoding="utf-8")


@contextmanager
def _compiling() -> Iterator[None]:
    """Errors of TVM become a CompileError."""
    try:
        yield
    except MLCError:
        raise
    except Exception as error:
        raise CompileError(f"TVM could not build the model library: {_tail(error)}") from error


def _module(spec: ModelSpec, ops: Ops) -> nn.Module:
    """What computes a model."""
    if spec.medusa is not None:
        return Medusa(spec, ops)
    if spec.encoder is not None:
        return Encoder(spec, ops)
    if spec.tower is not None:
        return ImageTower(spec, ops)
    return Decoder(spec, ops) if spec.eagle is None else EagleDecoder(spec, ops)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _tail(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:] or type(error).__name__
