"""Models with recurrent layers, of real shapes: tokens a second, ours and llama.cpp's.

    python benchmarks/states.py --peer-dir FOLDER [--models NAME ...] [--rounds N]
    python benchmarks/states.py --flat [--models NAME]    # our decode behind long prompts

Sizes are those of the published models, and weights are random, in Q4_0: matrices of layers as
llama-quantize has them, embeddings that are heads too in Q6_K, vectors and small matrices in F32.
Both sides run the same file, in turns, in one run. FOLDER is compare.py's: llama.cpp's programs are
in build/bin there, and the files are made there once. With --flat, the engine reads a prompt of
each length and decodes behind it; the depths are measured in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from common import Spread, print_configuration
from made_vocabulary import vocabulary_of
from ours import open_runner, versions
from ours_side import Ours
from ours_worker import Streams
from peers.base import Session, Side, Trial
from peers.llama_cpp import LlamaCpp
from real_shapes import random_tensor

from mlc_llm.conversion.gguf_fields import CLASSES
from mlc_llm.loader.gguf import GGUFFile, Value
from mlc_llm.models.registry import read_config
from mlc_llm.models.rwkv7 import NORMS
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import wanted_tensors
from mlc_llm.runtime.compute_thread import computing_here
from mlc_llm.serve.config import EngineConfig
from mlc_llm.support.model_source import default_model_path
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

TRIALS = (Trial("decode", 128, 64), Trial("prefill 512", 512))
DEPTHS = (128, 2048, 8192, 32_640)
THREADS, FILE_TYPE, STEPS = 2, 2, 60
FLOATS = ("conv", "ssm_a", "ssm_d", "_norm", "ssm_dt", "time_mix_", "lerp", "ssm_alpha", "ssm_beta")
"""What stays in F32, by a part of its name; vectors do in any case."""
MATRICES = ("receptance", "time_mix_key", "time_mix_value", "time_mix_output")
"""Those of RWKV-7 that do not."""
DELTA = ("linear_attention", "linear_attention", "linear_attention", "full_attention")
SHAPES: dict[str, dict[str, Any]] = {
    "lfm2-350m": {
        "architectures": ["Lfm2ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 8, "block_ff_dim": 6656,
        "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3, "conv_bias": False,
        "vocab_size": 65_536, "max_position_embeddings": 128_000, "norm_eps": 1e-5,
        "rope_theta": 1e6, "tie_embedding": True,
    },
    "qwen3.5-0.8b": {
        "architectures": ["Qwen3_5ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
        "intermediate_size": 3584, "vocab_size": 248_320, "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "linear_num_key_heads": 16,
        "linear_key_head_dim": 128, "linear_num_value_heads": 16, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "layer_types": list(DELTA * 6),
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
            "mrope_interleaved": True, "mrope_section": [11, 11, 10],
        },
    },
    "granite4-h-350m": {
        "architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": 768,
        "num_hidden_layers": 32, "num_attention_heads": 12, "num_key_value_heads": 4,
        "intermediate_size": 2048, "shared_intermediate_size": 2048, "vocab_size": 100_352,
        "layer_types": ["attention" if i in (10, 13, 17, 27) else "mamba" for i in range(32)],
        "mamba_n_heads": 48, "mamba_d_head": 32, "mamba_d_state": 128, "mamba_n_groups": 1,
        "mamba_d_conv": 4, "mamba_expand": 2, "num_local_experts": 0, "num_experts_per_tok": 0,
        "max_position_embeddings": 32_768, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
        "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 3.0,
        "residual_multiplier": 0.246, "position_embedding_type": "nope",
    },
    "mamba2-130m": {
        "architectures": ["Mamba2ForCausalLM"], "hidden_size": 768, "num_hidden_layers": 24,
        "num_heads": 24, "head_dim": 64, "state_size": 128, "n_groups": 1, "conv_kernel": 4,
        "expand": 2, "vocab_size": 50_288, "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5,
    },
    "rwkv7-0.1b": {
        "architectures": ["RWKV7ForCausalLM"], "hidden_size": 768, "num_hidden_layers": 12,
        "head_dim": 64, "intermediate_size": 3072, "vocab_size": 65_536, "hidden_act": "sqrelu",
        "decay_low_rank_dim": 64, "a_low_rank_dim": 64, "v_low_rank_dim": 32,
        "gate_low_rank_dim": 128,
    },
}  # fmt: skip
"""config.json by the name of the model."""


def model_file(name: str, folder: Path) -> Path:
    """The model's file, made in `folder` if it is missing."""
    path = folder / f"{name}-q4_0.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        write_model(name, unfinished)
        unfinished.rename(path)
    return path


def write_model(name: str, path: Path) -> None:
    """Tensors of one type and shape have the same random values in all layers."""
    config = SHAPES[name]
    spec, rng, made = read_config(config), np.random.default_rng(0), {}
    tensors: dict[str, TensorData] = {}
    for tensor, sizes in wanted_tensors(spec).items():
        key = (kind_of(tensor, sizes, spec), sizes, tensor.endswith("ssm_a"))
        if key not in made:
            one = random_tensor(rng, key[0], sizes)
            made[key] = _negative(one) if key[2] else one
        tensors[_in_file(tensor, config)] = made[key]
    if spec.architecture == "rwkv7":
        _as_converted(tensors)
    write_gguf(path, metadata(name, spec), tensors)


def _as_converted(tensors: dict[str, TensorData]) -> None:
    """RWKV-7 as llama.cpp wants it: with what no model reads, and one tensor in four axes."""
    for i in range(3):
        tensors[f"blk.0.time_mix_v{i}.weight"] = tensors[f"blk.0.time_mix_a{i}.weight"]
    for name, one in tensors.items():
        if name.endswith("time_mix_lerp_fused.weight"):
            shape = (one.shape[0], 1, 1, one.shape[1])
            tensors[name] = TensorData(shape, one.kind, one.data)


def kind_of(name: str, sizes: Sequence[int], spec: ModelSpec) -> str:
    if len(sizes) == 1 or any(part in name for part in FLOATS):
        is_matrix = len(sizes) == 2 and any(part in name for part in MATRICES)
        return "Q4_0" if is_matrix else "F32"
    is_head = name == ("token_embd.weight" if spec.tied_head else "output.weight")
    return "Q6_K" if is_head else "Q4_0"


def _negative(one: TensorData) -> TensorData:
    """A head's decay: numbers below 0."""
    values = -np.abs(np.frombuffer(one.data, np.float32))
    return TensorData(one.shape, one.kind, values.tobytes())


def _in_file(tensor: str, config: Mapping[str, Any]) -> str:
    """How files of this class name a tensor."""
    (config_class,) = config["architectures"]
    renamed = NORMS if config_class not in CLASSES else CLASSES[config_class].renamed
    for usual, own in renamed.items():
        if tensor == usual or tensor.endswith(f".{usual}"):
            return tensor.removesuffix(usual) + own
    return tensor


def metadata(name: str, spec: ModelSpec) -> dict[str, Value]:
    config = SHAPES[name]
    (config_class,) = config["architectures"]
    found: dict[str, Any] = {}
    if config_class in CLASSES:
        for make in CLASSES[config_class].fields:
            found |= make(spec, config)
    else:
        ranks = {"decay": "decay", "iclr": "a", "value_residual_mix": "v", "gate": "gate"}
        found = {
            "context_length": spec.context_window, "embedding_length": spec.hidden,
            "block_count": len(spec.layers), "feed_forward_length": config["intermediate_size"],
            "attention.layer_norm_epsilon": spec.norm_eps, "attention.head_count": 0,
            "wkv.head_size": config["head_dim"],
            **{
                f"attention.{key}_lora_rank": config[f"{short}_low_rank_dim"]
                for key, short in ranks.items()
            },
        }  # fmt: skip
    source = GGUFFile.open(default_model_path()).metadata
    return {
        "general.architecture": spec.architecture, "general.name": f"{name}, random weights",
        "general.file_type": FILE_TYPE, "general.quantization_version": 2,
        **{f"{spec.architecture}.{key}": value for key, value in found.items()},
        **vocabulary_of(source, spec.vocab),
    }  # fmt: skip


def compared(path: Path, sides: Mapping[str, Side], rounds: int) -> dict[str, list[float]]:
    """Tokens a second of each trial and side, in turns."""
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        sessions: dict[str, Session] = {}
        for name, side in sides.items():
            sessions[name] = side.open(path)
            stack.callback(sessions[name].close)
            sessions[name].wait()
        for _ in range(rounds):
            for trial in TRIALS:
                for name, session in sessions.items():
                    found.setdefault(f"{trial.name}, {name}", []).append(session.measure(trial))
    return found


def print_compared(name: str, found: Mapping[str, Sequence[float]], peer: str) -> None:
    for trial in TRIALS:
        ours, theirs = (found[f"{trial.name}, {side}"] for side in ("ours", peer))
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(
            f"{name}, {trial.name}: {Spread.of(ours)} against {Spread.of(theirs)} tok/s, "
            f"ratio {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


def flat(name: str, path: Path, steps: int) -> None:
    """Our decode behind prompts of several lengths, a token of each in turns."""
    config = EngineConfig(
        max_num_sequence=len(DEPTHS),
        max_total_sequence_length=sum(DEPTHS) + 1024 * len(DEPTHS),
        max_single_sequence_length=DEPTHS[-1] + 1024,
        prefill_chunk_size=512,
    )
    with computing_here():
        streams = Streams(open_runner(path, None, THREADS, config), 0, 0)
        for depth in DEPTHS:
            streams.begin(depth)
        turns = [streams.each() for _ in range(steps + 2)][2:]
    found = [[1 / seconds for seconds in one] for one in zip(*turns, strict=True)]
    first = statistics.median(found[0])
    for depth, speeds in zip(DEPTHS, found, strict=True):
        share = statistics.median(speeds) / first
        print(f"{name}, decode behind {depth}: {Spread.of(speeds)} tok/s, {share:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-dir", type=Path, help="where llama.cpp and the made models lie")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flat", action="store_true", help="our decode behind long prompts")
    parser.add_argument("--make", action="store_true", help="only make the files, and compile")
    given = parser.parse_args()
    if given.peer_dir is None and not given.flat:
        parser.error("--peer-dir is needed")
    print_configuration("Models with states", threads=THREADS, rounds=given.rounds, **versions())
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.peer_dir or Path(temporary)) / "models"
        for name in given.models:
            path = model_file(name, folder)
            ours = Ours(THREADS)
            ours.prepare(path)
            if given.make:
                continue
            if given.flat:
                flat(name, path, STEPS)
                continue
            peer = LlamaCpp(given.peer_dir, THREADS)
            found = compared(path, {"ours": ours, peer.name: peer}, given.rounds)
            print_compared(name, found, peer.name)


if __name__ == "__main__":
    main()
