"""Mean KL of one setting of ours from another, over a text: what a faster setting costs.

    python benchmarks/divergence.py MODEL [NAME=VALUE ...] -- [NAME=VALUE ...] --

The settings are environment variables; each side runs in a process of its own. The last line is
mean KL(first || second) in nats a position. (How far the default is from float32 is measured by
`accuracy.py`: some 5e-7 nats, so it can stand for it here.)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import HERE, kl_divergence
from ours import open_runner

from mlc_llm.serve.model_args import open_model

POSITIONS = 1024


def write_logits(model: Path, target: Path) -> None:
    """Logits [POSITIONS, V] of the public-domain text, in whole prompt steps."""
    text = (HERE / "public_domain.txt").read_text(encoding="utf-8")
    ids = open_model(str(model)).tokenizer.encode(text)[:POSITIONS]
    runner = open_runner(model, None, int(os.environ.get("MLC_NUM_THREADS", "2")))
    np.save(target, runner.logits(ids))


def main() -> None:
    model, *rest = sys.argv[1:]
    if rest[:1] == ["--write"]:
        write_logits(Path(model), Path(rest[1]))
        return
    middle = rest.index("--")
    sides = (rest[:middle], [one for one in rest[middle + 1 :] if one != "--"])
    with tempfile.TemporaryDirectory() as folder:
        arrays = []
        for number, side in enumerate(sides):
            target = Path(folder) / f"{number}.npy"
            settings = dict(one.split("=", 1) for one in side)
            command = [sys.executable, __file__, model, "--write", str(target)]
            subprocess.run(
                command, check=True, env=os.environ | settings, stderr=subprocess.DEVNULL
            )
            arrays.append(np.load(target, mmap_mode="r"))
        found = [kl_divergence(a[None], b[None])[0] for a, b in zip(*arrays, strict=True)]
    print(float(np.mean(found)))


if __name__ == "__main__":
    main()
