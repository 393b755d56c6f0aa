"""Measures a whole `convert_weight`: time, processor time and the largest memory.

    python benchmarks/conversion_of_model.py [--quantization NAME ...] [--layers N]

It makes a Hugging Face folder of a Llama with the sizes of Llama 3.2 1B (bfloat16, random weights,
one shard) and converts it in a process of its own for each name. The largest memory is that of the
whole process (its resident set), Python and NumPy with it; beside it stand that of a process which
only imports the same, and the size of the shard that is read.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import print_configuration

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

HIDDEN, WIDE, HEADS, KV_HEADS, VOCAB = 2048, 8192, 32, 8, 128256
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
    "intermediate_size": WIDE, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": True, "vocab_size": VOCAB,
}  # fmt: skip
PIECE = 1 << 22
"""Numbers that are written at once."""


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Of all tensors, by name."""
    kv = KV_HEADS * HIDDEN // HEADS
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for i in range(layers):
        start = f"model.layers.{i}"
        for name, shape in {
            "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (kv, HIDDEN),
            "self_attn.v_proj": (kv, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN),
            "mlp.down_proj": (HIDDEN, WIDE), "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
        }.items():  # fmt: skip
            found[f"{start}.{name}.weight"] = shape
    return found | {"model.norm.weight": (HIDDEN,)}


def write_folder(folder: Path, layers: int) -> int:
    """The folder. Returns the bytes of its shard."""
    header, offset = {}, 0
    for name, shape in shapes(layers).items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    numbers = (rng.standard_normal(PIECE).astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, offset, 2 * PIECE):
            file.write(np.roll(numbers, start // PIECE).data.cast("B")[: offset - start])
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
    write_tokenizer(folder)
    return offset


def write_tokenizer(folder: Path) -> None:
    """The 256 bytes as tokens."""
    import tokenizers as hf

    letters = sorted(hf.pre_tokenizers.ByteLevel.alphabet())
    made = hf.Tokenizer(hf.models.BPE(vocab={one: i for i, one in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = hf.decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    assert len(letters) < VOCABULARY_SIZE


def convert(folder: Path, name: str, output: Path) -> None:
    """In a process of its own: prints seconds, processor seconds, and the largest memory."""
    from mlc_llm.conversion.convert import convert_weight
    from mlc_llm.model_files.huggingface import HuggingFaceModel
    from mlc_llm.support.progress import no_progress

    wall, processor = time.perf_counter(), time.process_time()
    if name != "nothing":
        convert_weight(HuggingFaceModel.open(folder), name, output, no_progress)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(time.perf_counter() - wall, time.process_time() - processor, peak)


def measured(folder: Path, name: str, output: Path) -> tuple[float, float, float]:
    """What `convert` prints."""
    command = [sys.executable, __file__, "--convert", str(folder), name, str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, processor, peak = map(float, done.stdout.split()[-3:])
    return seconds, processor, peak


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quantization", nargs="+", default=["q4f16_1", "q4_0", "q8_0", "q4_k"])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--convert", nargs=3, metavar=("FOLDER", "NAME", "OUTPUT"))
    args = parser.parse_args()
    if args.convert:
        convert(Path(args.convert[0]), args.convert[1], Path(args.convert[2]))
        return
    print_configuration("converting a model", layers=args.layers, hidden=HIDDEN, vocab=VOCAB)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.mkdir()
        shard = write_folder(path, args.layers)
        print(f"a shard of {shard / 1e6:,.0f} MB")
        print(f"{'name':10s} {'seconds':>8s} {'of cores':>8s} {'peak MB':>8s} {'peak/shard':>10s}")
        for name in ("nothing", *args.quantization):
            output = Path(folder) / "out"
            target = output if name.startswith("q") and "f" in name else output / "new.gguf"
            seconds, processor, peak = measured(path, name, target)
            row = f"{name:10s} {seconds:8.1f} {processor:8.1f} {peak / 1e6:8.0f}"
            print(f"{row} {peak / shard:10.2f}", flush=True)
            subprocess.run(["rm", "-r", "-f", str(output)], check=True)


if __name__ == "__main__":
    main()
