"""`disagg_config` with a model: the prompt goes from one engine to another one, bit for bit."""

from __future__ import annotations

import base64
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.tiny_model import write_tiny_model

SMALL = {"max_num_sequence": 4, "max_total_sequence_length": 2048, "prefill_chunk_size": 256}
PROMPT = [40 + number % 50 for number in range(75)]
ANSWER = {"max_tokens": 12, "temperature": 1.0, "seed": 5, "logprobs": True, "top_logprobs": 3}


def asked(engine: SyncMLCEngine, kind: str, **fields: Any) -> tuple[Any, dict[str, Any]]:
    """The text with its log-probabilities, and the usage."""
    debug = {"disagg_config": {"kind": kind, **fields}, "ignore_eos": True}
    found = engine.generate([PROMPT], {**ANSWER, "debug_config": debug})  # type: ignore[dict-item]
    return (found.texts[0], found.logprobs[0]), asdict(found.usages[0])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf", kinds={"": "F32"})


@pytest.mark.slow
def test_the_bits_are_those_of_one_engine(file: Path) -> None:
    first, second, alone = (SyncMLCEngine(str(file), "cpu", engine_config=SMALL) for _ in range(3))
    plain = alone.generate([PROMPT], {**ANSWER, "debug_config": {"ignore_eos": True}})
    expected = plain.texts[0], plain.logprobs[0]
    ticket = asked(second, "prepare_receive", kv_window_end=-1)[1]["extra"]
    assert ticket["prefix_matched_length"] == 0
    fields = {"kv_append_metadata": ticket["kv_append_metadata"], "kv_window_end": -1}
    (text, _), usage = asked(first, "remote_send", **fields)
    assert not text[0] and usage["extra"]["prefill_tokens"] == len(PROMPT) - 1
    pages = usage["extra"]["kv_append_metadata"]

    altered = bytearray(base64.b64decode(pages))
    altered[-1000] ^= 1
    given = {"kv_window_begin": -1, "kv_append_metadata": base64.b64encode(altered).decode()}
    answer, usage = asked(second, "start_generation", **given)
    assert answer == expected
    assert "altered" in usage["extra"]["kv_transfer_refused"]
    assert usage["cached_tokens"] == 0

    second.reset()
    answer, usage = asked(second, "start_generation", kv_window_begin=-1, kv_append_metadata=pages)
    assert answer == expected
    assert usage["cached_tokens"] == len(PROMPT) - 1
    assert "kv_transfer_refused" not in usage["extra"]
