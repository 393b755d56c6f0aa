"""The methods of a model as functions of TVM, with the arguments of `library/signatures.py`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import tvm
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.ops import Ops
from mlc_llm.compiler.infos import encoder_info, sight_info, state_infos, tower_info
from mlc_llm.library.encoder_signatures import encoder_signatures
from mlc_llm.library.image_signatures import image_signatures
from mlc_llm.library.medusa_signatures import DRAFT, medusa_signatures
from mlc_llm.library.metadata import AdaptedInfo, KVInfo
from mlc_llm.library.signatures import (
    DRAFT_NEXT,
    FORWARD,
    WITH_PARAMS,
    kept_arguments,
    signatures,
)
from mlc_llm.models.decoder import Decoder
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.step_tensors import StepTensors

Params = list[tuple[str, nn.Parameter]]
"""By name, in the order in which functions take them."""


def export(
    model: nn.Module, kv: KVInfo, adapted: tuple[AdaptedInfo, ...]
) -> tuple[tvm.IRModule, Params]:
    """The functions of a model, before a backend compiles them. Their attribute `num_input` says
    how many arguments change from call to call; KEPT ones and params come behind them."""
    found = _signatures(model.spec, kv, model.ops, adapted)
    specs = {name: _method(model, name, arguments) for name, arguments in found.items()}
    module, params = model.export_tvm(specs)
    for name, arguments in found.items():
        if kept := _kept(name, arguments):
            function = module[name]
            inputs = int(function.attrs["num_input"]) - sum(map(len, kept.values()))
            module[name] = function.with_attr("num_input", inputs)
    return module, params


def _kept(name: str, arguments: dict[str, object]) -> dict[str, list[object]]:
    """The shapes of each KEPT argument of a function."""
    shapes = {one: arguments[one] for one in kept_arguments(name, arguments)}
    return {one: shape for one, shape in shapes.items() if isinstance(shape, list)}


def _method(model: nn.Module, name: str, arguments: dict[str, object]) -> nn.spec.MethodSpec:
    """One method. Those of decoders that compute a step get all arguments as one `StepTensors`."""
    method, spec, kept = getattr(model, name), model.spec, _kept(name, arguments)
    own = {one: shape for one, shape in arguments.items() if one not in kept}
    if isinstance(model, Decoder) and name in (FORWARD, DRAFT_NEXT):
        method = _of_step(method, list(own), {one: len(tensors) for one, tensors in kept.items()})
    has_params = name in WITH_PARAMS or name.startswith(DRAFT)
    has_params |= spec.encoder is not None or spec.tower is not None
    shapes = {
        argument: nn.spec.Tuple(argument, shape) if isinstance(shape, list) else shape
        for argument, shape in own.items()
    }
    for argument, tensors in kept.items():
        shapes |= {f"{argument}_{i}": shape for i, shape in enumerate(tensors)}
    mode = "plain" if has_params else "none"
    return nn.spec.MethodSpec(method, list(shapes), [*shapes.values()], mode, effect_mode="none")


def _of_step(
    method: Callable[[StepTensors], object], names: list[str], kept: dict[str, int]
) -> Callable[..., object]:
    """A function of the arguments of these names, and of the tensors of the kept ones."""

    def step(*given: Tensor) -> object:
        own = dict(zip(names, given[: len(names)], strict=True))
        rest = iter(given[len(names) :])
        lists = {name: list(islice(rest, count)) for name, count in kept.items()}
        return method(StepTensors(**own, **lists))

    return step


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
        states=state_infos(spec, ops),
        adapted=adapted,
        sight=sight_info(spec),
        has_eagle=spec.eagle is not None,
    )


def _tensor(dtype: str, *shape: object) -> object:
    return nn.spec.Tensor(list(shape), dtype)
