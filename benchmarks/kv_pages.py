"""Compares our page tables with TVM's PagedKVCache: attention of one layer, one token a step.

    python benchmarks/kv_pages.py

Both sides run 30 layers of rotary embedding, storing and attention in one call of the Relax VM. The
sizes are the default model's (9 query heads, 3 KV heads, head size 64). TVM's kernels run on any
CPU. They are also measured alone: the rest of the call is the cost of TVM's object itself, which
other kernels could not reduce.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from common import Spread, print_configuration
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor
from tvm.relax.frontend.nn.llm.kv_cache import (
    PagedKVCache,
    RopeMode,
    TIRPagedKVCache,
    _attention_decode_cpu,
)
from tvm.relax.frontend.nn.llm.position_embedding import llama_rope_with_position_map

from mlc_llm.backends.cpu.device import CpuDevice
from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.ops import CpuOps
from mlc_llm.backends.cpu.target import choose, target_for
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.backends.operands import LayerInputs, Part
from mlc_llm.library.metadata import KVGroupInfo, KVInfo
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.runtime.kv_cache import KVCache
from mlc_llm.runtime.layer_memory import allocate_pages
from mlc_llm.runtime.rope import RopeTable, Rotation

LAYERS, HEADS, KV_HEADS, DIM = 30, 9, 3, 64
WIDTH = (HEADS + 2 * KV_HEADS) * DIM
SPEC = AttentionSpec(heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, scale=DIM**-0.5)
ISA = choose().isa


class Stock(nn.Module):  # type: ignore[misc]
    """Attention through TVM's object."""

    def create(
        self,
        batch: tvm.tirx.Var,
        total: tvm.tirx.Var,
        chunk: tvm.tirx.Var,
        page: tvm.tirx.Var,
        window: tvm.tirx.Var,
    ) -> PagedKVCache:
        return TIRPagedKVCache(
            "mha", batch, total, chunk, page, window, relax.ShapeExpr([0, LAYERS]), LAYERS, HEADS,
            KV_HEADS, DIM, DIM, 0, 0, RopeMode.NORMAL, 1, 100000, {}, relax.prim_value(0), DIM,
            False, "float32", target_for(ISA),
        )  # fmt: skip

    def step(self, x: Tensor, cache: PagedKVCache) -> Tensor:
        for layer in range(LAYERS):
            y = cache.attention_with_fused_qkv(layer, x, HEADS, sm_scale=DIM**-0.5)
        return y


class Ours(nn.Module):  # type: ignore[misc]
    """Attention with page tables that are inputs."""

    def step(  # noqa: PLR0917
        self, x: Tensor, rope: Tensor, slot: Tensor, position: Tensor, blocks: Tensor,
        page_ids: Tensor, window: Tensor, pages: list[Tensor],
    ) -> Tensor:  # fmt: skip
        ops = CpuOps(ISA)
        parts = [Part(x, at * DIM) for at in (0, HEADS, HEADS + KV_HEADS)]
        for layer in range(LAYERS):
            ops.begin_layer()
            inputs = LayerInputs(
                position=position, sink_position=position, rope=rope, slot=slot, place=position,
                query_blocks=blocks, page_ids=page_ids, window=window, pages=pages[layer],
            )  # fmt: skip
            y = ops.attention(SPEC, parts, None, inputs)
        return y


def floats(*shape: int | str) -> nn.spec.Tensor:
    return nn.spec.Tensor(list(shape), "float32")


def ints(*shape: int | str) -> nn.spec.Tensor:
    return nn.spec.Tensor(list(shape), "int32")


def machine(module: nn.Module, spec: dict[str, dict[str, object]]) -> relax.VirtualMachine:
    for method in spec.values():
        method["$"] = {"param_mode": "none", "effect_mode": "none"}
    compiled, _ = module.export_tvm(spec)
    return relax.VirtualMachine(relax.build(compiled, target=target_for(ISA)), tvm.cpu())


def stock_step() -> Callable[[], float]:
    """Seconds of one token through the object; each call lengthens the sequence."""
    cache_type = nn.spec.Object(object_type=PagedKVCache)
    spec: dict[str, dict[str, object]] = {
        "create": dict.fromkeys(("batch", "total", "chunk", "page", "window"), int),
        "step": {"x": floats(1, 1, WIDTH // DIM, DIM), "cache": cache_type},
    }
    vm = machine(Stock(), spec)
    sizes = [tvm_ffi.Shape([n]) for n in (1, 4096, 512, 16, 0)]
    cache = vm["create"](*sizes)
    names = ("add_sequence", "begin_forward", "end_forward")
    add, begin, end = (tvm_ffi.get_global_func(f"vm.builtin.kv_state_{name}") for name in names)
    add(cache, 0)
    x = tvm.runtime.tensor(np.ones((1, 1, WIDTH // DIM, DIM), np.float32))
    run = vm["step"]

    def step() -> float:
        start = time.perf_counter()
        begin(cache, tvm_ffi.Shape([0]), tvm_ffi.Shape([1]))
        run(x, cache)
        end(cache)
        return time.perf_counter() - start

    return step


def our_step() -> Callable[[], float]:
    """Seconds of one token over our tables, bookkeeping included."""
    page = nn.spec.Tensor(["p", KV_HEADS, 2, PAGE * DIM], ISA.kv_dtype)
    arguments: dict[str, object] = {
        "x": floats("m", WIDTH), "rope": floats("r", 2, DIM // 2), "slot": ints("m"),
        "position": ints("m"), "blocks": ints("t", 3), "page_ids": ints("n"), "window": ints(2),
        "pages": [page] * LAYERS,
    }  # fmt: skip
    run = machine(Ours(), {"step": arguments})["step"]
    cut, device = CpuOps(ISA).attention_blocks(SPEC), CpuDevice()
    group = KVGroupInfo(
        tuple(range(LAYERS)), KV_HEADS, DIM, None, cut.query, cut.fast_query, cut.kv_split
    )
    info = KVInfo(PAGE, ISA.kv_dtype, (group,))
    pages = allocate_pages(info, (256,), device)
    cache = KVCache(info, (256,), 1, lambda group, source, target: None, (None,))
    cache.add(0)
    inverse = (1e5 ** -(np.arange(0, DIM, 2) / DIM)).astype(np.float32)
    table = RopeTable(Rotation.of(inverse), device)
    x = tvm.runtime.tensor(np.ones((1, WIDTH), np.float32))
    window = tvm.runtime.tensor(np.array([2**31 - 1, 0], np.int32))
    staging = device.staging()

    def step() -> float:
        start = time.perf_counter()
        placed = cache.place([(0, 1)])
        (one,) = placed.groups
        rope = table.reaching(max(placed.position) + 1)
        tables = ((one.slots, 0), (placed.position, 0), (one.query_blocks, 3), (one.page_ids, 0))
        run(x, rope, *staging.tensors(*tables), window, pages)
        return time.perf_counter() - start

    return step


def stock_kernels(length: int, repeat: int) -> float:
    """Seconds that the stock decode and rotary kernels take alone at this context, a layer."""
    decode = _attention_decode_cpu(KV_HEADS, HEADS, DIM, "float32", False, {})
    rotary = llama_rope_with_position_map(1e5, 1.0, DIM, HEADS, KV_HEADS, "float32", {}, DIM)
    built = [
        tvm.tirx.build(f.with_attr("global_symbol", "f"), target=target_for(ISA))["f"]
        for f in (decode, rotary)
    ]
    count = -(-length // PAGE)

    def zeros(*shape: int, dtype: str = "float32") -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(np.zeros(shape, dtype))

    def ints_of(*values: int) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(np.array(values, np.int32))

    q, k, v = zeros(1, HEADS, DIM), zeros(1, KV_HEADS, DIM), zeros(1, KV_HEADS, DIM)
    attention = [
        q, zeros(count, 2, KV_HEADS, PAGE, DIM), ints_of(0, count), ints_of(*range(count)),
        ints_of((length - 1) % PAGE + 1), ints_of(0), ints_of(0), zeros(1, HEADS, DIM),
        zeros(1, HEADS), 0, 1.0, 10000.0, DIM**-0.5,
    ]  # fmt: skip
    qkv = zeros(1, HEADS + 2 * KV_HEADS, DIM)
    calls = [lambda: built[0](*attention), lambda: built[1](qkv, ints_of(length), q, k, v, 1)]
    return sum(min(timed(call) for _ in range(repeat)) for call in calls)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--contexts", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--repeat", type=int, default=15, help="tokens measured at each context")
    arguments = parser.parse_args()
    threads = configure_threads()
    print_configuration("attention a layer, µs", model=f"kernels {ISA.name}, {threads} threads")
    sides = {"TVM's PagedKVCache": stock_step(), "our page tables": our_step()}
    length = 0
    for context in sorted(arguments.contexts):
        while length < context:
            length += 1
            for step in sides.values():
                step()
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(arguments.repeat):
            length += 1
            for name, step in sides.items():
                found[name].append(step() * 1e6 / LAYERS)
        alone = stock_kernels(length, arguments.repeat) * 1e6
        for name, values in found.items():
            print(f"context {length}: {name:20} {Spread.of(values)}")
        print(f"context {length}: stock kernels alone  {alone:.1f}")


if __name__ == "__main__":
    main()
