"""Compares layers of experts with dense layers of the same bytes and products.

    python benchmarks/experts.py [--kernels NAME] [--kinds Q4_0 Q4_K] [--tokens 1 8 512]

The experts are those of an OLMoE layer: 64 of 1,024 rows, of which 8 compute a token. A dense layer
has 8,192 rows: as many as 8 experts. So it reads as many bytes for one token, and multiplies as
many numbers for each token of a prompt. All begin with a norm and end with the down product. The
choice of experts is random. Few tokens: GB/s of the weights that are read, beside a plain read of
the memory. Many tokens: GMAC/s. Both sorts of layers are measured in turns.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm_ffi
from common import Spread, print_configuration
from machine import written
from matvec import reader
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.cpu.backend import CpuBackend
from mlc_llm.backends.cpu.target import choose
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.backends.device import Functions
from mlc_llm.backends.operands import ExpertMatrices, Part
from mlc_llm.backends.ops import Ops
from mlc_llm.models.network_spec import ExpertsSpec

HIDDEN, WIDE = 2048, 1024
SPEC = ExpertsSpec(num_experts=64, experts_per_token=8, intermediate=WIDE)
DENSE = SPEC.experts_per_token * WIDE
LAYERS = 4
COPIES = 4
"""Of the dense layers, and inputs of the experts: together they are larger than a cache."""
MANY = 64
"""Tokens from which on products, not bytes, are counted."""
EPS = 1e-5


class Experts(nn.Module):  # type: ignore[misc]
    """Layers with a norm and a router each, which share their experts."""

    def __init__(self, kind: str, ops: Ops) -> None:
        self.ops = ops
        for i in range(LAYERS):
            setattr(self, f"norm_{i}", nn.Parameter((HIDDEN,), "float32"))
            setattr(self, f"router_{i}", ops.matrix(SPEC.num_experts, HIDDEN, "F32", "router"))
        self.gate, self.up = (self._stack(WIDE, HIDDEN, kind) for _ in range(2))
        self.down = self._stack(HIDDEN, WIDE, kind)

    def _stack(self, rows: int, columns: int, kind: str) -> nn.Module:
        return self.ops.expert_matrices(SPEC.num_experts, rows, columns, kind)

    def forward(self, x: Tensor) -> Tensor:
        self.ops.begin()
        for i in range(LAYERS):
            self.ops.begin_layer()
            router = getattr(self, f"router_{i}")
            given = self.ops.norm(x, getattr(self, f"norm_{i}"), EPS)
            matrices = ExpertMatrices(router, self.gate, self.up, self.down)
            x = self.ops.add(x, self.ops.moe(SPEC, given, matrices))
        return x


class Dense(nn.Module):  # type: ignore[misc]
    """Layers with a norm and a feed-forward network each."""

    def __init__(self, kind: str, ops: Ops) -> None:
        self.ops = ops
        for i in range(LAYERS):
            setattr(self, f"norm_{i}", nn.Parameter((HIDDEN,), "float32"))
            setattr(self, f"gate_up_{i}", ops.matrix(2 * DENSE, HIDDEN, kind, "dense"))
            setattr(self, f"down_{i}", ops.matrix(HIDDEN, DENSE, kind, "dense"))

    def forward(self, x: Tensor) -> Tensor:
        self.ops.begin()
        for i in range(LAYERS):
            self.ops.begin_layer()
            given = self.ops.norm(x, getattr(self, f"norm_{i}"), EPS)
            both = self.ops.linear(getattr(self, f"gate_up_{i}"), given)
            gated = self.ops.gated("silu", Part(both), Part(both, DENSE), DENSE)
            x = self.ops.linear(getattr(self, f"down_{i}"), gated, add_to=x)
        return x


@dataclass(frozen=True)
class Compiled:
    """Compiled layers, and the shapes of their parameters."""

    library: Functions
    params: list[tuple[str, tuple[int, ...], str]]

    def weights(self) -> list[tvm_ffi.Tensor]:
        """Random routers, norms of 1, and matrices of zeros, which take as long as others."""
        rng, made = np.random.default_rng(0), []
        for name, shape, dtype in self.params:
            array = written(math.prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)
            if name.startswith("norm"):
                array[...] = 1
            if name.startswith("router"):
                array[...] = rng.standard_normal(shape)
            made.append(tvm_ffi.from_dlpack(array))
        return made


def compiled(backend: CpuBackend, layers: nn.Module) -> Compiled:
    """Compiles layers."""
    spec = {"forward": {"x": nn.spec.Tensor(["tokens", HIDDEN], "float32")}}
    spec["forward"]["$"] = {"param_mode": "packed", "effect_mode": "none"}
    module, params = layers.export_tvm(spec)
    folder = Path(tempfile.mkdtemp())
    result = backend.compile(module, folder)
    library = backend.device.link(folder, result.files, result.requires)
    named = [(name, tuple(map(int, one.shape)), str(one.dtype)) for name, one in params]
    return Compiled(library, named)


def used_experts(x: np.ndarray, router: np.ndarray) -> int:
    """How many experts the tokens of x choose together; all norms have weights of 1."""
    normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPS)
    scores = normed @ router.transpose(0, 2, 1).reshape(-1, HIDDEN)[: SPEC.num_experts].T
    return len(np.unique(np.argsort(-scores, axis=1)[:, : SPEC.experts_per_token]))


class Pair:
    """Layers of experts, and dense ones."""

    def __init__(self, backend: CpuBackend, kind: str) -> None:
        self.backend = backend
        self.experts = compiled(backend, Experts(kind, backend.ops()))
        self.dense = compiled(backend, Dense(kind, backend.ops()))
        self.stacks = self.experts.weights()
        self.copies = [self.dense.weights() for _ in range(COPIES)]
        names = [name for name, *_ in self.experts.params]
        self.routers = [
            np.from_dlpack(self.stacks[names.index(f"router_{i}.packed")]) for i in range(LAYERS)
        ]
        self.bytes = sum(math.prod(one.shape) * 4 for one in self.copies[0])

    def measure(self, tokens: int, rounds: int) -> tuple[Spread, Spread]:
        """Giga of bytes, or of products, a second, of both; the first round is not counted."""
        rng, speeds = np.random.default_rng(tokens), []
        for i in range((rounds + 1) * COPIES):
            x = rng.standard_normal((tokens, HIDDEN)).astype(np.float32)
            used = sum(used_experts(x, router) for router in self.routers)
            read = self.bytes * used / (LAYERS * SPEC.experts_per_token)
            given = self.backend.device.upload(x)
            ours = self._seconds(self.experts, given, self.stacks)
            other = self._seconds(self.dense, given, self.copies[i % COPIES])
            products = LAYERS * 3 * DENSE * HIDDEN * tokens
            sizes = (products, products) if tokens >= MANY else (read, self.bytes)
            speeds.append((sizes[0] / ours / 1e9, sizes[1] / other / 1e9))
        experts, dense = zip(*speeds[COPIES:], strict=True)
        return Spread.of(experts), Spread.of(dense)

    @staticmethod
    def _seconds(layers: Compiled, *given: object) -> float:
        start = time.perf_counter()
        layers.library["forward"](*given)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernels", help="a set of kernels; the machine's best if not given")
    parser.add_argument("--kinds", nargs="+", default=["Q4_0", "Q4_K"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 8, 512])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    isa = choose(arguments.kernels).isa
    title = f"kernels {isa.name}, {configure_threads()} threads"
    print_configuration("a layer of experts beside a dense one", kernels=title)
    read = reader(isa, 256)
    for kind in arguments.kinds:
        pair = Pair(CpuBackend(isa), kind)
        for tokens in arguments.tokens:
            ours, dense = pair.measure(tokens, arguments.rounds)
            unit = "GMAC/s" if tokens >= MANY else "GB/s"
            line = f"{kind}, tokens {tokens}: {ours} {unit}, dense {dense}: "
            line += f"{ours.median / dense.median:.0%}"
            if tokens < MANY:
                limit = Spread.of([read() for _ in range(5)])
                line += f"; {ours.median / limit.median:.0%} of a plain read's {limit}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
