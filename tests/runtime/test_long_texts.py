"""A needle in long texts, in exact pages and in pages of 8 bits (`benchmarks/retrieval_model.py`).
The oracle compares the answers with Transformers'."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from ours import greedy, open_runner
from retrieval_model import expected, prompt, write_retrieval_model

from mlc_llm.library.page_format import KVCacheDtype
from mlc_llm.serve.config import EngineConfig

NEEDLE = Path(__file__).resolve().parents[2] / "benchmarks" / "needle.py"


@pytest.mark.parametrize("kv_cache", ["auto", "int8"])
def test_a_needle_is_found_wherever_it_lies(tmp_path: Path, kv_cache: KVCacheDtype) -> None:
    length = 600
    config = EngineConfig(
        max_num_sequence=1,
        max_total_sequence_length=length + 16,
        max_single_sequence_length=length + 16,
        prefill_chunk_size=128,
        kv_cache_dtype=kv_cache,
        verbose=False,
    )
    runner = open_runner(write_retrieval_model(tmp_path / "retrieval.gguf"), None, 1, config)
    for depth in (0.0, 0.4, 1.0):
        assert greedy(runner, prompt(length, depth), len(expected())) == expected(), depth


@pytest.mark.slow
def test_131072_tokens_in_the_memory_that_was_planned() -> None:
    """It takes a minute and a half of the processor."""
    command = [sys.executable, str(NEEDLE), "--kv-cache-dtype", "int8"]
    command += ["--lengths", "131056", "--depths", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "131056 tokens, depth 0.5: found" in done.stdout
