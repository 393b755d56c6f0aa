"""Models to convert, and a plain reader of MLC LLM's folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mlc_llm.conversion.convert import Converted, convert_weight
from mlc_llm.conversion.tokenizer_files import write_tokenizer
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.support.progress import Progress, no_progress
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

Floats = npt.NDArray[np.float32]
SHAPE = TinyShape(hidden=64, intermediate=160, tied_head=False)
HF_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip


def tiny_gguf(path: Path, kinds: Mapping[str, str] = {"": "F32"}, **shape: object) -> GGUFModel:
    """A Llama in a GGUF file."""
    made: Any = {**SHAPE.__dict__, **shape}
    return GGUFModel.open(write_tiny_model(path, kinds=kinds, shape=TinyShape(**made)))


def quiet(label: str, total: float | None) -> AbstractContextManager[Progress]:
    return no_progress(label, total)


def convert(model: GGUFModel, name: str, output: Path) -> Converted:
    return convert_weight(model, name, output, quiet)


def hugging_face_weights(path: Path) -> dict[str, Floats]:
    """The weights of a Llama's GGUF file by the names of Transformers, in its order of rows."""
    file = GGUFFile.open(path)
    found = {}
    for name, tensor in file.tensors.items():
        values = dequantize(tensor.kind, tensor.data, tensor.shape)
        *_, last = stem = name.removesuffix(".weight").split(".")
        if last in ("attn_q", "attn_k") and file.metadata["general.architecture"] == "llama":
            heads = file.metadata["llama.attention.head_count" + "_kv" * (last == "attn_k")]
            assert isinstance(heads, int)
            pairs = values.reshape(heads, -1, 2, values.shape[1])
            values = pairs.transpose(0, 2, 1, 3).reshape(values.shape)
        layer = f"model.layers.{stem[1]}." if stem[0] == "blk" else ""
        found[f"{layer}{HF_NAMES[last]}.weight"] = values
    return found


def write_folder(path: Path, folder: Path, config: Mapping[str, object]) -> Path:
    """The Hugging Face folder of a GGUF file."""
    folder.mkdir()
    write_tokenizer(GGUFModel.open(path), folder)
    weights = {k: np.ascontiguousarray(v) for k, v in hugging_face_weights(path).items()}
    save_file(weights, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read_shards(folder: Path) -> dict[str, npt.NDArray[np.generic]]:
    """All parameters of MLC LLM's folder, each checked against its record."""
    index = json.loads((folder / "tensor-cache.json").read_text())
    found: dict[str, npt.NDArray[np.generic]] = {}
    for shard in index["records"]:
        data = (folder / shard["dataPath"]).read_bytes()
        assert len(data) == shard["nbytes"]
        assert hashlib.md5(data).hexdigest() == shard["md5sum"]
        for one in shard["records"]:
            part = data[one["byteOffset"] : one["byteOffset"] + one["nbytes"]]
            dtype = {"bfloat16": "uint16"}.get(one["dtype"], one["dtype"])
            found[one["name"]] = np.frombuffer(part, dtype).reshape(one["shape"])
    assert index["metadata"]["ParamSize"] == len(found)
    assert index["metadata"]["ParamBytes"] == sum(one.nbytes for one in found.values())
    return found
