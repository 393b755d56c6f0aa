"""Mean KL of one setting of ours from another, over a text: what a faster setting costs.

    python benchmarks/divergence.py MODEL [NAME=VALUE ...] -- [NAME=VALUE ...] --

The settings are environment variables (MLC_PRECISION=fast-prompts, MLC_KV_CACHE_DTYPE=int8,
MLC_LLM_KERNELS=avx2). Each side
runs in its own process. The text is cut into prompts, and the text itself continues each prompt.
The last line is JSON: the mean KL(first || second) in nats a position, for 64 positions `behind`
each prompt, where answers begin, and for those `inside` the prompts. `accuracy.py` measures the
distance of the default from float32: about 5e-7 nats, so the default can replace float32 here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import FORCED, HERE, kl_divergence
from ours import ONE_SEQUENCE, kv_cache_asked, open_runner, precision_asked

from mlc_llm.serve.opening.bundle import open_model

PROMPT = 256
"""Tokens of each prompt. The logits of its last token count as behind it."""
PIECE = PROMPT + FORCED - 1


def pieces(ids: Sequence[int]) -> list[Sequence[int]]:
    """The whole pieces of a text: a prompt and what follows. Raises ValueError if there is none."""
    found = [ids[start : start + PIECE] for start in range(0, len(ids) - PIECE + 1, PIECE)]
    if not found:
        raise ValueError(f"a text of {len(ids)} tokens is shorter than one piece of {PIECE}")
    return found


def write_pieces(model: Path, target: Path) -> None:
    """Ids [pieces, PIECE] of the public-domain text."""
    text = (HERE / "public_domain.txt").read_text(encoding="utf-8")
    np.save(target, np.array(pieces(open_model(str(model)).tokenizer.encode(text)), np.int32))


def write_logits(model: Path, ids: Path, target: Path) -> None:
    """Logits [pieces, PIECE, V] of a file of pieces."""
    config = replace(ONE_SEQUENCE, precision=precision_asked(), kv_cache_dtype=kv_cache_asked())
    runner = open_runner(model, None, int(os.environ.get("MLC_NUM_THREADS", "2")), config)
    found = [runner.logits(piece.tolist(), prompt_tokens=PROMPT) for piece in np.load(ids)]
    np.save(target, found)


def mean_divergences(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Mean KL(first || second) of logits [pieces, PIECE, V], `behind` and `inside` the prompts."""
    each = np.array([kl_divergence(a, b) for a, b in zip(first, second, strict=True)])
    return {
        "behind": float(each[:, PROMPT - 1 :].mean()),
        "inside": float(each[:, : PROMPT - 1].mean()),
    }


def main() -> None:
    model, *rest = sys.argv[1:]
    if rest[:1] == ["--write"]:
        write_logits(Path(model), *map(Path, rest[1:]))
        return
    middle = rest.index("--")
    sides = (rest[:middle], [one for one in rest[middle + 1 :] if one != "--"])
    with tempfile.TemporaryDirectory() as folder:
        arrays, ids = [], Path(folder) / "ids.npy"
        write_pieces(Path(model), ids)
        for number, side in enumerate(sides):
            target = Path(folder) / f"{number}.npy"
            settings = dict(one.split("=", 1) for one in side)
            command = [sys.executable, __file__, model, "--write", str(ids), str(target)]
            subprocess.run(command, check=True, env=os.environ | settings)
            arrays.append(np.load(target, mmap_mode="r"))
        print(json.dumps(mean_divergences(*arrays)))


if __name__ == "__main__":
    main()
