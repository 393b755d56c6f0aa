"""What LoRA adapters cost: streams over several adapters against the same streams without one.

    python benchmarks/adapters.py [--model FILE] [--streams N] [--adapters N] [--rank N]

Three sides: `plain` was opened without adapters, `none` has adapters that no request names, in
`adapted` each request has one of them, in turns. The adapters are random ones of all matrices of
the layers. All three decode all streams, and take turns of a few steps each, so that they have the
same neighbours on a machine that is shared. Figures are medians over the turns, ratios those of a
turn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from common import Spread, model_path, print_configuration

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.gguf_metadata import Value
from mlc_llm.models.registry import read_gguf
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

PROMPT, TURN = 64, 4
"""Tokens of a prompt; steps of a turn."""


def random_adapter(model: GGUFFile, path: Path, rank: int, seed: int) -> str:
    """A GGUF adapter of all matrices of the layers that adapters can change."""
    rng, tensors = np.random.default_rng(seed), {}
    plan = read_gguf(model.metadata, model.tensors).with_adapters()
    for one in plan.spec.adapted:
        for source in plan.matrices[one.name]:
            rows, columns = source.shape
            down = rng.normal(size=(rank, columns)) / columns**0.5
            up = 0.01 * rng.normal(size=(rows, rank))
            for end, values in (("a", down), ("b", up)):
                numbers = values.astype(np.float32)
                tensors[f"{source.tensor}.lora_{end}"] = TensorData.quantized(numbers, "F32")
    architecture = str(model.metadata["general.architecture"])
    metadata: dict[str, Value] = {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(rank),
    }
    write_gguf(path, metadata, tensors)
    return str(path)


def engine_of(model: Path, streams: int, length: int, adapters: dict[str, str]) -> SyncMLCEngine:
    limits = EngineConfig(
        max_num_sequence=streams,
        max_single_sequence_length=PROMPT + length + 16,
        max_total_sequence_length=streams * (PROMPT + length + 16),
        prefix_cache_mode="disable",
        speculative_mode="disable",  # a step is a token of each stream
        adapters=adapters,
        verbose=False,
    )
    return SyncMLCEngine(
        str(model), mode="server", engine_config=limits, request_stream_callback=lambda _: None
    )


class Side:
    """Streams of one engine, which all decode."""

    def __init__(self, engine: SyncMLCEngine, names: Sequence[str]) -> None:
        self._engine, self._names = engine, names

    def start(self, streams: int, length: int) -> None:
        """Begin all streams anew; length: tokens of an answer."""
        engine, names = self._engine, self._names
        engine.reset()
        fields = {"temperature": 0.0, "max_tokens": length, "debug_config": {"ignore_eos": True}}
        config = GenerationConfig.of(fields)
        for i in range(streams):
            prompt = np.random.default_rng(i).integers(0, 256, PROMPT).tolist()
            name = names[i % len(names)] if names else ""
            request = engine.create_request(str(i), [TokenData(prompt)], config, adapter=name)
            engine.add_request(request)
        wanted = engine.metrics()["prefill_tokens_sum"] + streams * PROMPT
        while engine.metrics()["prefill_tokens_sum"] < wanted:
            engine.step()

    def turn(self) -> float:
        """Seconds of a turn."""
        started = time.perf_counter()
        for _ in range(TURN):
            self._engine.step()
        return time.perf_counter() - started


def measured(sides: Mapping[str, Side], streams: int, length: int) -> list[dict[str, float]]:
    """Tokens a second of all streams of each side, turn by turn."""
    for side in sides.values():
        side.start(streams, length)
        side.turn()  # warms up
    turns = length // TURN - 3
    return [
        {name: TURN * streams / side.turn() for name, side in sides.items()} for _ in range(turns)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a .gguf file (default: the default model)")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    path = model_path(args.model)
    more = {"model": path.name, "streams": args.streams, "adapters": args.adapters}
    print_configuration("LoRA adapters", **more, rank=args.rank, answer=args.length)
    with tempfile.TemporaryDirectory() as folder:
        file = GGUFFile.open(path)
        sources = {
            f"a{i}": random_adapter(file, Path(folder, f"{i}.gguf"), args.rank, i)
            for i in range(args.adapters)
        }
        given = args.streams, args.length
        sides = {
            "plain": Side(engine_of(path, *given, {}), ()),
            "none": Side(engine_of(path, *given, sources), ()),
            "adapted": Side(engine_of(path, *given, sources), list(sources)),
        }
    found = [turn for _ in range(args.rounds) for turn in measured(sides, *given)]
    for name in sides:
        speeds = Spread.of([turn[name] for turn in found])
        ratios = Spread.of([100 * turn[name] / turn["plain"] for turn in found])
        print(f"{name:8s} {speeds} tokens/s, {ratios} % of plain")


if __name__ == "__main__":
    main()
