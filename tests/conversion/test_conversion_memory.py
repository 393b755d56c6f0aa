"""How much memory a conversion takes, beside what Python and its libraries take anyway."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from conversion_tools import tiny_gguf

from mlc_llm.conversion.gguf_writer import NewTensor, write_gguf

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak is read from /proc"
)
ROWS, WIDE = 65_536, 1024
SCRIPT = """
import sys
from pathlib import Path
from conversion_tools import convert
from mlc_llm.model_files.gguf import GGUFModel
peaks = []
for source, output in zip(sys.argv[2::2], sys.argv[3::2]):
    convert(GGUFModel.open(source), sys.argv[1], Path(output))
    status = Path("/proc/self/status").read_text().split()
    peaks.append(1024 * int(status[status.index("VmHWM:") + 1]))
print(*peaks)
"""


def write_large(path: Path) -> None:
    """A Llama with one large tensor, the embedding: 128 MiB of float16."""
    small = tiny_gguf(path.with_name("small.gguf"), layers=1, hidden=WIDE, head_dim=64, heads=16)
    old = small.file
    piece = np.random.default_rng(0).standard_normal((1024, WIDE)).astype(np.float16)
    ends = ("token_embd.weight", "output.weight")
    tensors = [
        NewTensor(name, (ROWS, WIDE) if name in ends[:1] else one.shape, "F16")
        if name in ends[:1]
        else NewTensor(name, one.shape, one.kind)
        for name, one in old.tensors.items()
        if name != ends[1]
    ]

    def made() -> Iterator[tuple[NewTensor, Iterator[npt.NDArray[np.uint8]]]]:
        for one in tensors:
            data = old.tensors[one.name].data
            whole = [piece.reshape(-1).view(np.uint8)] * (ROWS // 1024)
            yield one, iter(whole if one.name in ends else [data])

    write_gguf(path, {key: old.metadata.raw(key) for key in old.metadata}, tensors, made())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["q4f16_1", *(pytest.param(n, marks=pytest.mark.slow) for n in ("q4f16_0", "q4_0"))]
)
def test_the_peak_is_that_of_the_largest_shard(name: str, tmp_path: Path) -> None:
    write_large(tmp_path / "large.gguf")
    tiny_gguf(tmp_path / "tiny.gguf")
    pairs = [f"{tmp_path}/{p}" for p in ("tiny.gguf", "first", "large.gguf", "second")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, *pairs],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        check=True,
        capture_output=True,
        text=True,
    )
    before, after = map(int, done.stdout.split())
    files = [path.stat().st_size for path in (tmp_path / "second").iterdir()]
    largest = ROWS * WIDE // 2 if name != "q4_0" else ROWS * WIDE * 18 // 32
    assert max(files) >= largest
    assert after - before <= 1.5 * largest, f"{(after - before) / largest:.2f} times"
