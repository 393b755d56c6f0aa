"""`library/signatures.py` is kept from both sides: the runtime calls each function with the shapes
that stand there, and the compiled function takes no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
import tvm_ffi
from tiny_models import TinyModels

from mlc_llm.library.metadata import KVInfo, Metadata, StateInfo
from mlc_llm.library.signatures import FORWARD, kept_arguments, signatures
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.runtime.batch import Batch, BatchRow, LogitBias, Sampling
from mlc_llm.runtime.library import Library
from mlc_llm.runtime.model_runner import ModelRunner

KERNELS = "portable"
MODEL = "own-head"
ROPE_DIM = 16
Calls = dict[str, list[tuple[Any, ...]]]
"""By name of the function: the arguments of its calls."""


class Called(NamedTuple):
    """The functions of a library, and how the runtime has called them: without `params`."""

    metadata: Metadata
    functions: dict[str, Any]
    calls: Calls


def declared(metadata: Metadata) -> dict[str, dict[str, Any]]:
    """Of each function, by argument: its element type and its shape, or a list of such."""
    return signatures(
        lambda dtype, *shape: (dtype, shape),
        vocab=metadata.vocab_size,
        padded_vocab=metadata.padded_vocab,
        hidden=metadata.hidden_size,
        rope_dims=(ROPE_DIM,) * metadata.ropes,
        kv=metadata.kv,
    )


def flat(arguments: Sequence[Any]) -> Iterator[Any]:
    """Each tensor, or each (type, shape) that stands for one."""
    for one in arguments:
        is_tensor = isinstance(one, tvm_ffi.Tensor)
        is_declared = isinstance(one, tuple) and isinstance(one[0], str)
        yield from [one] if is_tensor or is_declared else flat(list(one))


def check(declared: dict[str, Any], call: Sequence[Any]) -> None:
    """AssertionError unless a call has the declared types and shapes; a size with a name is the
    same wherever the name stands."""
    assert len(call) == len(declared)
    sizes: dict[str, int] = {}
    for (dtype, shape), tensor in zip(flat(declared.values()), flat(call), strict=True):
        assert (str(tensor.dtype), len(tensor.shape)) == (dtype, len(shape))
        for wanted, found in zip(shape, tensor.shape, strict=True):
            assert found == (sizes.setdefault(wanted, found) if isinstance(wanted, str) else wanted)


@pytest.fixture(scope="module")
def calls(tiny_models: TinyModels) -> Called:
    """Of a library."""
    functions: dict[str, Any] = {}
    seen: Calls = {}
    usual, given = Library.__getitem__, Library.with_params

    def seeing(name: str, function: Any) -> Any:
        functions[name] = function

        def call(*args: Any) -> Any:
            seen.setdefault(name, []).append(args)
            return function(*args)

        return call

    def watched(self: Library, name: str) -> Any:
        return seeing(name, usual(self, name))

    def with_params(
        self: Library, name: str, params: Any, tokens: int = 0, kept: Sequence[Any] = ()
    ) -> Any:
        names = list(declared(self.metadata)[name])
        own = [one for one in names if one not in kept_arguments(name, names)]

        def whole(*args: Any) -> Any:
            """The function of all arguments, those that are kept included."""
            values = dict(zip(names, args, strict=True))
            others = [t for one in names if one not in own for t in values[one]]
            function = given(self, name, params, tokens, others)
            return function(*(values[one] for one in own))

        seen_whole = seeing(name, whole)

        def call(*args: Any) -> Any:
            values, rest = dict(zip(own, args, strict=True)), iter(kept)
            for one in names:
                if one not in own:
                    values[one] = list(islice(rest, len(declared(self.metadata)[name][one])))
            assert not list(rest)
            return seen_whole(*(values[one] for one in names))

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "__getitem__", watched)
        patch.setattr(Library, "with_params", with_params)
        use_everything(tiny_models.runner(MODEL, KERNELS))
    return Called(Library(tiny_models.library(MODEL, KERNELS)).metadata, functions, seen)


def use_everything(runner: ModelRunner) -> None:
    """Steps with one row and with many, a fork within a page, and all that changes logits."""
    mask = bytes([255]) * (4 * -(-runner.limits.vocab_size // 32))
    edited = Sampling(
        temperature=0.7, top_p=0.9, top_logprobs=3, allowed=mask, wants_hidden=True,
        logit_bias=LogitBias({3: 1.0}), presence_penalty=0.5, token_counts={5: 2},
    )  # fmt: skip
    runner.add_sequence(0)
    runner.add_sequence(1)
    first = [BatchRow(0, list(range(20)), [Sampling()]), BatchRow(1, [7], [edited])]
    runner.run(Batch(first))
    runner.fork_sequence(0, 2, 19)
    runner.run(Batch([BatchRow(i, [i], [edited]) for i in range(3)]))
    runner.run(Batch([BatchRow(2, [9], [])]))


def test_the_runtime_calls_every_function_as_declared(calls: Called) -> None:
    functions = declared(calls.metadata)
    assert set(calls.calls) == set(functions)
    for name, arguments in functions.items():
        for call in calls.calls[name]:
            check(arguments, call)


def changed(tensor: Any, dtype: str, shape: Sequence[int | str], free: set[str]) -> Iterator[Any]:
    """Arrays that differ from a declared tensor in type, in number of axes, or in a size that is
    not `free`."""
    right = np.zeros(tensor.shape, dtype)
    yield right.astype("int64" if dtype == "int32" else "float64")
    yield right[None]
    for axis, size in enumerate(shape):
        if size not in free:
            longer = [*right.shape]
            longer[axis] += 1
            yield np.zeros(longer, dtype)


def variants(declared: Any, given: Any, free: set[str]) -> Iterator[Any]:
    """An argument with one tensor of it changed."""
    if isinstance(declared, tuple):
        for array in changed(given, *declared, free):
            yield tvm_ffi.from_dlpack(np.ascontiguousarray(array))
        return
    for i, inner in enumerate(declared):
        for other in variants(inner, given[i], free):
            yield [*given[:i], other, *list(given)[i + 1 :]]


def free_sizes(name: str, declared: dict[str, Any]) -> set[str]:
    """Names of sizes that stand once, so that no other argument speaks against any number, and of
    those that stand in KEPT arguments only, which are made once and together."""
    sizes = [size for _, shape in flat(declared.values()) for size in shape]
    kept = kept_arguments(name, declared)
    others = [one for argument, one in declared.items() if argument not in kept]
    wanted = {size for _, shape in flat(others) for size in shape}
    return {
        size
        for size in sizes
        if isinstance(size, str) and (sizes.count(size) == 1 or size not in wanted)
    }


def test_a_compiled_function_takes_nothing_else(calls: Called) -> None:
    """Else a mistake of the runtime would read or write memory that is not its own."""
    count = 0
    for name, arguments in declared(calls.metadata).items():
        function, call = calls.functions[name], calls.calls[name][-1]
        function(*call)
        for i, one in enumerate(arguments.values()):
            for wrong in variants(one, call[i], free_sizes(name, arguments)):
                with pytest.raises((TypeError, ValueError, RuntimeError)):
                    function(*call[:i], wrong, *call[i + 1 :])
                count += 1
    assert count > 100


def test_states_have_rows_of_slots_or_of_bases() -> None:
    found = signatures(
        lambda dtype, *shape: (dtype, shape),
        vocab=8, padded_vocab=8, hidden=16, rope_dims=(), kv=KVInfo(16, "float32", ()),
        states=(StateInfo(0, (3,), by_chunk=False), StateInfo(0, (2, 4), by_chunk=True)),
    )[FORWARD]  # fmt: skip
    assert found["state_rows"] == ("int32", ("r", STATE_ROW))
    assert found["states"] == [("float32", ("slots", 3)), ("float32", ("bases", 2, 4))]
