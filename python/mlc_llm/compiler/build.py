"""Compiles a model library from a model's spec, with stock TVM and a backend."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm
from tvm.relax.frontend import nn

from mlc_llm.backends.base import Backend, Ops
from mlc_llm.backends.operands import AttentionBlocks
from mlc_llm.errors import CompileError, MLCError
from mlc_llm.library.encoder_signatures import encoder_signatures
from mlc_llm.library.image_signatures import image_signatures
from mlc_llm.library.medusa_signatures import DRAFT, medusa_signatures
from mlc_llm.library.metadata import (
    METADATA_FILE,
    VERSION,
    AdaptedInfo,
    EncoderInfo,
    KVGroupInfo,
    KVInfo,
    Metadata,
    ParamInfo,
    SightInfo,
    StateInfo,
    TowerInfo,
)
from mlc_llm.library.signatures import DRAFT_NEXT, FORWARD, WITH_PARAMS, signatures
from mlc_llm.models.decoder import Decoder
from mlc_llm.models.eagle import EagleDecoder
from mlc_llm.models.encoder import Encoder
from mlc_llm.models.image_tower import ImageTower
from mlc_llm.models.medusa import Medusa
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.step_tensors import StepTensors


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
    kv = kv_info(spec, backend, ops)
    adapted = adapted_infos(spec, backend)
    with _compiling():
        module, params = model.export_tvm(export_specs(model, kv, adapted))
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
        states=state_infos(spec),
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


def kv_info(spec: ModelSpec, backend: Backend, ops: Ops) -> KVInfo:
    """Sizes and types of the model's KV pages."""
    groups = []
    for group in spec.kv_groups:
        layers = [spec.paged_layers[i] for i in group.layers]
        blocks = ops.attention_blocks(layers[0]) if layers else AttentionBlocks(1, 1, 1)
        one = KVGroupInfo(
            layers=group.layers,
            kv_heads=group.kv_heads,
            head_dim=group.head_dim,
            window=group.window,
            query_block=blocks.query,
            fast_query_block=blocks.fast_query,
            kv_split=blocks.kv_split,
            apart=blocks.apart,
        )
        groups.append(one)
    return KVInfo(backend.page_size, backend.kv_dtype, tuple(groups))


def state_infos(spec: ModelSpec) -> tuple[StateInfo, ...]:
    """What the recurrent layers of a model keep."""
    return tuple(StateInfo(i, shape) for i, shape in spec.state_shapes)


def adapted_infos(spec: ModelSpec, backend: Backend) -> tuple[AdaptedInfo, ...]:
    """The matrices that LoRA adapters may change."""
    dtype = backend.adapter_dtype
    return tuple(AdaptedInfo(one.name, one.columns, one.widths, dtype) for one in spec.adapted)


def eagle_group(spec: ModelSpec) -> int | None:
    """The group of layers with that of the EAGLE head; None if there is none."""
    return None if spec.eagle is None else spec.group_of_layer()[len(spec.layers)]


def encoder_info(spec: ModelSpec) -> EncoderInfo | None:
    """None for a decoder."""
    one = spec.encoder
    if one is None:
        return None
    return EncoderInfo(
        token_types=one.token_types,
        labels=one.labels,
        pair_pooling=one.pair.pooling,
        reaches=spec.reaches,
        width=one.projections[-1] if one.projections else spec.hidden,
        is_projected=bool(one.projections),
    )


def tower_info(spec: ModelSpec) -> TowerInfo | None:
    """None for all but towers of images."""
    one = spec.tower
    return None if one is None else TowerInfo(one.patches, one.patch_numbers, one.tokens, one.width)


def sight_info(spec: ModelSpec) -> SightInfo | None:
    """None for a decoder without images."""
    return None if spec.sight is None else SightInfo(spec.sight == "whole", spec.seeing_groups)


def export_specs(
    model: nn.Module, kv: KVInfo, adapted: tuple[AdaptedInfo, ...]
) -> dict[str, object]:
    """The argument shapes of the model's methods, in the form of `export_tvm`."""
    return {
        name: _method(model, name, arguments)
        for name, arguments in _signatures(model.spec, kv, model.ops, adapted).items()
    }


def _method(model: nn.Module, name: str, arguments: dict[str, object]) -> nn.spec.MethodSpec:
    """One method. Those of decoders that compute a step get all arguments as one `StepTensors`."""
    method, spec = getattr(model, name), model.spec
    if isinstance(model, Decoder) and name in (FORWARD, DRAFT_NEXT):
        method = _of_step(method, list(arguments))
    has_params = name in WITH_PARAMS or name.startswith(DRAFT)
    has_params |= spec.encoder is not None or spec.tower is not None
    shapes = [
        nn.spec.Tuple(argument, shape) if isinstance(shape, list) else shape
        for argument, shape in arguments.items()
    ]
    mode = "plain" if has_params else "none"
    return nn.spec.MethodSpec(method, list(arguments), shapes, mode, effect_mode="none")


def _of_step(method: Callable[[StepTensors], object], names: list[str]) -> Callable[..., object]:
    return lambda *given: method(StepTensors(**dict(zip(names, given, strict=True))))


def _signatures(
    spec: ModelSpec, kv: KVInfo, ops: Ops, adapted: tuple[AdaptedInfo, ...]
) -> dict[str, dict[str, object]]:
    dims = tuple(rope.dim for rope in spec.ropes)
    if encoder := encoder_info(spec):
        return encoder_signatures(
            _tensor, hidden=spec.hidden, rope_dims=dims, kv=kv, encoder=encoder
        )
    if tower := tower_info(spec):
        return image_signatures(_tensor, kv=kv, tower=tower)
    if spec.medusa is not None:
        return medusa_signatures(
            _tensor,
            vocab=spec.tokens,
            padded_vocab=ops.padded_rows(spec.vocab),
            hidden=spec.hidden,
            heads=spec.medusa.heads,
        )
    return signatures(
        _tensor,
        vocab=spec.tokens,
        padded_vocab=ops.padded_rows(spec.vocab),
        hidden=spec.hidden,
        rope_dims=dims,
        kv=kv,
        states=state_infos(spec),
        adapted=adapted,
        sight=sight_info(spec),
        has_eagle=spec.eagle is not None,
    )


def _tensor(dtype: str, *shape: object) -> object:
    return nn.spec.Tensor(list(shape), dtype)


def _tail(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:] or type(error).__name__
