"""Texts a second of an encoder of BERT-base's shape, ours and others', on one random file.

    python benchmarks/embeddings.py [--peer LLAMA_SERVER] [--onnx] [--kind Q8_0] [--texts 512]

Our engine computes the texts in one call of `embeddings.create`, llama.cpp's server in one request,
onnxruntime (--onnx; `onnx_encoder.py`) in batches of 32, with weights and activations of 8 bits.
All get token ids. They take turns, and the medians are compared. --peer names the program
`llama-server`; without it, llama.cpp is not measured. The weights are random, so only speeds say
anything.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib import request
from urllib.error import URLError

import numpy as np
from common import Spread, print_configuration
from onnx_encoder import OnnxEncoder, write_graph
from ours import versions

from mlc_llm import MLCEngine
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

HIDDEN, WIDE, HEADS, LAYERS, CONTEXT, VOCABULARY = 768, 3072, 12, 12, 512, 30522
FIRST = 1000
"""The ids before it are control tokens and unused ones, as in BERT's vocabulary."""
SPECIAL = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
START_S = 120
Texts = Sequence[list[int]]
Vectors = Sequence[Sequence[float]] | np.ndarray
OURS = "ours"


def metadata() -> dict[str, Any]:
    """As llama.cpp's converter writes it."""
    own = {
        "block_count": LAYERS, "context_length": CONTEXT, "embedding_length": HIDDEN,
        "feed_forward_length": WIDE, "attention.head_count": HEADS, "pooling_type": 1,
        "attention.layer_norm_epsilon": 1e-12, "attention.causal": False,
    }  # fmt: skip
    words = {
        "model": "bert", "pre": "default", "token_type_count": 2, "unknown_token_id": 100,
        "tokens": [SPECIAL.get(i, f"\u2581w{i}") for i in range(VOCABULARY)],
        "token_type": [3 if i in SPECIAL else 1 for i in range(VOCABULARY)],
        "cls_token_id": 101, "bos_token_id": 101, "eos_token_id": 102, "seperator_token_id": 102,
        "padding_token_id": 0, "mask_token_id": 103,
    }  # fmt: skip
    return {
        "general.architecture": "bert",
        **{f"bert.{key}": value for key, value in own.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in words.items()},
    }


def tensors(kind: str) -> dict[str, TensorData]:
    """kind: of the matrices."""
    rng = np.random.default_rng(0)

    def made(*shape: int, scale: float = 0.02, plain: bool = False) -> TensorData:
        values = rng.standard_normal(shape, np.float32) * np.float32(scale)
        return TensorData.quantized(values, "F32" if plain or len(shape) == 1 else kind)

    found = {"token_embd.weight": made(VOCABULARY, HIDDEN)}
    found["position_embd.weight"] = made(CONTEXT, HIDDEN, plain=True)
    found["token_types.weight"] = made(2, HIDDEN, plain=True)
    norms = ["token_embd_norm"]
    for i in range(LAYERS):
        sizes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (HIDDEN, HIDDEN))
        for name, shape in {**sizes, "ffn_up": (WIDE, HIDDEN), "ffn_down": (HIDDEN, WIDE)}.items():
            found[f"blk.{i}.{name}.weight"] = made(*shape)
            found[f"blk.{i}.{name}.bias"] = made(shape[0])
        norms += [f"blk.{i}.attn_output_norm", f"blk.{i}.layer_output_norm"]
    for name in norms:
        found[f"{name}.weight"], found[f"{name}.bias"] = made(HIDDEN, scale=1.0), made(HIDDEN)
    return found


@contextmanager
def peer_server(program: str, model: Path, threads: int, tokens: int) -> Iterator[str]:
    """Its address. tokens: of a text; a batch has 512."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = max(1, 512 // tokens)
    command = [
        program, "-m", str(model), "--embeddings", "--port", str(port), "-t", str(threads),
        "-tb", str(threads), "-np", str(places), "-c", str(places * CONTEXT),
        "-b", "512", "-ub", "512",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield _ready(f"http://127.0.0.1:{port}", process)
        finally:
            process.terminate()


def _ready(address: str, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with request.urlopen(f"{address}/health", timeout=5):
                return address
        except (URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("the peer's server does not start")


def peer_vectors(address: str, texts: Texts) -> list[list[float]]:
    body = json.dumps({"input": texts, "encoding_format": "float"}).encode()
    asked = request.Request(f"{address}/v1/embeddings", body, {"content-type": "application/json"})
    with request.urlopen(asked, timeout=3600) as answer:
        return [one["embedding"] for one in json.load(answer)["data"]]


def _vectors(engine: MLCEngine, texts: Texts) -> Vectors:
    found = [one.embedding for one in engine.embeddings.create(input=texts).data]
    return [one for one in found if isinstance(one, list)]


def measure(
    engine: MLCEngine, texts: Texts, rounds: int, peers: Mapping[str, Callable[[Texts], Vectors]]
) -> None:
    """All sides take turns."""
    sides: dict[str, Callable[[Texts], Vectors]] = {
        OURS: lambda given: _vectors(engine, given),
        **peers,
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    found: dict[str, Vectors] = {}
    for i in range(rounds + 1):  # the first round warms up
        for name, compute in sides.items():
            began = time.perf_counter()
            found[name] = compute(texts)
            if i:
                speeds[name].append(len(texts) / (time.perf_counter() - began))
    for name, measured in speeds.items():
        print(f"texts a second, {name}: {Spread.of(measured)}")
        if name != OURS:
            ratio = Spread.of([a / b for a, b in zip(speeds[OURS], measured, strict=True)])
            near = min(float(np.dot(*pair)) for pair in zip(found[OURS], found[name], strict=True))
            print(f"  ratio: {ratio}; least cosine between both: {near:.6f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", metavar="LLAMA_SERVER")
    parser.add_argument("--onnx", action="store_true", help="onnxruntime too, with 8 bits")
    parser.add_argument("--kind", default="Q8_0")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="exact")
    given = parser.parse_args()
    what = f"{given.texts} texts of {given.tokens} tokens, {given.kind}, {given.precision}"
    print_configuration("Embeddings", **versions(), texts=what, rounds=given.rounds)
    rng = np.random.default_rng(0)
    texts = rng.integers(FIRST, VOCABULARY, (given.texts, given.tokens)).tolist()
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        path, made = folder / "bert-base.gguf", tensors(given.kind)
        write_gguf(path, metadata(), made)
        peers: dict[str, Callable[[Texts], Vectors]] = {}
        if given.peer is not None:
            server = peer_server(given.peer, path, threads, given.tokens)
            peers["llama.cpp"] = partial(peer_vectors, stack.enter_context(server))
        if given.onnx:
            write_graph(folder / "bert.onnx", made, LAYERS, HEADS, 1e-12)
            peers["onnxruntime"] = OnnxEncoder(folder, folder / "bert.onnx", threads).vectors
        config = {"precision": given.precision}
        with MLCEngine(str(path), engine_config=config) as engine:
            measure(engine, texts, given.rounds, peers)


if __name__ == "__main__":
    main()
