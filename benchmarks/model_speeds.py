"""Tokens a second of each architecture, ours and llama.cpp's: `models.py --speed FOLDER`.

Each model is the small one of `models.py` made wider and deeper: hidden size about 1,024, twelve
layers or more, random weights. llama.cpp's converter writes it as a GGUF file and llama-quantize
makes it Q4_0; both sides run that file, in turns. The vocabulary stays that of the byte tokenizer,
so nearly all of the time is the layers'.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ours_side import Ours
from peers.base import Session, Side, Trial, run
from peers.llama_cpp import LlamaCpp

from mlc_llm.models.registry import Architecture
from mlc_llm.protocol.json_value import JsonValue

HIDDEN, LAYERS, CONTEXT = 1024, 12, 1024
TRIALS = (Trial("decode", 128, 64), Trial("prefill 512", 512))
ROUNDS = 3
THREADS = 2
TIMES_WIDER = (
    "hidden_size", "n_embd", "hidden_size_per_layer_input",
    "num_attention_heads", "num_key_value_heads", "n_head", "num_heads",
    "mamba_d_ssm", "mamba_n_heads", "linear_num_key_heads", "linear_num_value_heads",
)  # fmt: skip
"""Sizes that grow with the hidden size. Those of a head stay."""
INNER = (
    "intermediate_size", "moe_intermediate_size", "shared_intermediate_size",
    "shared_expert_intermediate_size",
)  # fmt: skip
EXPERTS = ("num_local_experts", "num_experts")
DEPTHS = ("num_hidden_layers", "n_layer")
OF_LAYERS = ("layer_types", "no_rope_layers")
LENGTHS = ("max_position_embeddings", "n_positions")
Config = dict[str, Any]


def wider(config: Mapping[str, JsonValue]) -> Config:
    """The config.json of a small random model, as one of a real width."""
    found: Config = {key: _plain(value) for key, value in config.items()}
    hidden = found.get("hidden_size") or found["n_embd"]
    times = max(1, round(HIDDEN / hidden))
    deeper = math.ceil(LAYERS / next(found[key] for key in DEPTHS if key in found))
    change: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(TIMES_WIDER, lambda size: size * times),
        **dict.fromkeys(INNER, lambda _: 3 * hidden * times // (3 if _has_experts(found) else 1)),
        **dict.fromkeys(EXPERTS, lambda _: 8),
        **dict.fromkeys(DEPTHS, lambda count: count * deeper),
        **dict.fromkeys(OF_LAYERS, lambda kinds: kinds * deeper),
        **dict.fromkeys(LENGTHS, lambda _: CONTEXT),
        "num_experts_per_tok": lambda _: 2,
        "sliding_window": lambda window: window and CONTEXT // 2,
        "per_layer_config": lambda layers: _repeated(layers, found, times, deeper),
    }
    return {
        key: change[key](value) if key in change and value is not None else value
        for key, value in found.items()
    }


def _has_experts(config: Config) -> bool:
    return any(config.get(key) for key in EXPERTS)


def _repeated(layers: dict[str, Config], config: Config, times: int, deeper: int) -> Config:
    """What single layers have of their own, for the wider and deeper model."""
    depth = config["num_hidden_layers"]
    return {
        str(int(layer) + turn * depth): {
            key: value * times if key in TIMES_WIDER else value for key, value in own.items()
        }
        for turn in range(deeper)
        for layer, own in layers.items()
    }


def _plain(value: Any) -> Any:
    """A number that JSON cannot write, as Transformers writes it."""
    if isinstance(value, dict) and set(value) == {"__float__"}:
        return math.inf
    return [_plain(one) for one in value] if isinstance(value, list) else value


def made(row: Architecture, config: Mapping[str, JsonValue], folder: Path, tools: Path) -> Path:
    """A Q4_0 file of the wider model. folder: for its files, empty. tools: llama.cpp's programs.

    Raises AssertionError or `Missing` with what the converter or llama-quantize says.
    """
    import torch
    import transformers
    from converted import converted
    from dense_models import fields_of
    from test_state_spaces import Published

    kind = getattr(transformers, row.config)
    torch.manual_seed(0)
    model = kind(kind.config_class.from_dict(wider(config)))
    files = folder / "files"
    save = Published(model) if model.config.model_type == "granitemoehybrid" else model
    save.config = model.config
    path = converted(save, files, **fields_of(model))
    quantized = folder / "model-q4_0.gguf"
    run([tools / "llama-quantize", path, quantized, "Q4_0"])
    for file in files.iterdir():
        file.unlink()
    return quantized


def measured_speed(
    row: Architecture, config: Mapping[str, JsonValue], folder: Path, peer_folder: Path
) -> dict[str, float]:
    """Medians of tokens a second: "mlc_llm" and "llama.cpp" decode, "..., prompts" read 512."""
    peer = LlamaCpp(peer_folder, THREADS)
    path = made(row, config, folder, peer.bin)
    ours = Ours(THREADS, settings={"MLC_LLM_HOME": str(folder / "home")})
    sides: dict[str, Side] = {"mlc_llm": ours, peer.name: peer}
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        sessions: dict[str, Session] = {}
        for name, side in sides.items():
            sessions[name] = side.open(path)
            stack.callback(sessions[name].close)
            sessions[name].wait()
        for _ in range(ROUNDS):
            for trial in TRIALS:
                for name, session in sessions.items():
                    key = name if trial.tokens else f"{name}, prompts"
                    found.setdefault(key, []).append(session.measure(trial))
    return {key: float(f"{statistics.median(speeds):.3g}") for key, speeds in found.items()}
