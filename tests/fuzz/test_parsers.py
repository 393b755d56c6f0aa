"""Every parser of what others write, under a fuzzer that follows the coverage of its code: it reads
the bytes or refuses them with one line of ours. `parser_fuzzer.py` runs longer by hand."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from parser_seeds import seeds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("atheris") is None, reason="needs `pip install atheris`"
    ),
]

PROGRAM = Path(__file__).parent / "parser_fuzzer.py"
SECONDS = 15
"""For each parser."""
MEMORY_MB = 4096
ONE_INPUT_S = 60


@pytest.fixture
def quick_folder() -> Iterator[str]:
    """In memory where the system has such a place: each input is written into a file."""
    memory = "/dev/shm"
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield folder


@pytest.mark.parametrize("name", list(seeds()))
def test_a_parser_reads_or_refuses_whatever_it_gets(
    name: str, tmp_path: Path, quick_folder: str
) -> None:
    place = tmp_path / "seeds"
    place.mkdir()
    for i, data in enumerate(seeds()[name]):
        (place / str(i)).write_bytes(data)
    flags = [f"-max_total_time={SECONDS}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={ONE_INPUT_S}"]
    command = [sys.executable, str(PROGRAM), name, str(place), *flags, "-print_final_stats=1"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": quick_folder},
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert int(re.findall(r"number_of_executed_units: (\d+)", done.stderr)[0]) > 10, done.stderr
