"""docs/api.md and docs/guide.md: what the code knows is up to date, and every piece runs."""

from __future__ import annotations

import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlc_llm import errors
from mlc_llm.protocol.chat_parameters import ChatParameters
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.async_engine import AsyncMLCEngine
from mlc_llm.serve.metrics import EngineMetricsRecorder, RequestMetrics
from mlc_llm.serve.sync_engine import SyncMLCEngine

ROOT = Path(__file__).parent.parent
RENEW: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "renew_docs.py"))
PAGES: list[Path] = RENEW["PAGES"]
EXAMPLE = re.compile(r"<!-- from the code: examples/.*?<!-- end -->", flags=re.DOTALL)

PRINTS = {
    "Whole or cut: limits, finish reasons, usage": r"length: .*\n\d+ tokens read, 5 .*\n.*\ncut",
    "Control tokens": r"a turn: .+\nletters .+\nby the .+\nends of turns in the prompt: 2\n",
    "What a mode chooses": r"interactive: 1 .*, 8192 tokens .*\nlocal: 4 .*, 8192 tokens",
    "A text longer than the context": r"context: 8192 .*\nthe prompt: (8[2-9]|9|1\d)\d+ tokens\n"
    r"held at a time: \d{3} tokens\n\s*\w",
    "Seeds": r"same answer: True\nanother seed: True\nsequences of one request differ: [23]\n",
    "Log-probabilities": r"(?m)\A('.*': [01]\.\d\d of \[.*\]\n){6}\Z",
    "asyncio": r"\A\['one text', 'another text'\]\n",
    "Several processes": r"\['one prompt', 'another prompt'\]\n",
    "`GenerationConfig`": r"9 forms\n",
    "Errors": r"temperature \| -1 \| should .*\n4096 tokens are the limit\n",
    "Long texts in half the memory": r"\Aauto: \s*\w.*\n(.*\n)*int8: \s*\w",
}
"""Section to what its pieces print, by which a piece that does nothing is found out."""


def sections() -> Iterator[Any]:
    """The Python of each section as one program, without the examples, which have their test."""
    for page in PAGES:
        if page.stem == "server":
            continue  # its pieces start servers of their own
        for section in EXAMPLE.sub("", page.read_text(encoding="utf-8")).split("\n## "):
            pieces = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
            if pieces:
                title, program = section.splitlines()[0], "\n".join(pieces)
                marks = [pytest.mark.model] if "model=None" in program else []
                marks += [pytest.mark.slow] if "<!-- slow -->" in section else []
                yield pytest.param(title, program, id=title, marks=marks)


@pytest.mark.parametrize(("title", "program"), list(sections()))
def test_the_pieces_run(
    title: str, program: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if request.node.get_closest_marker("model") is not None:
        request.getfixturevalue("default_model")
    path = tmp_path / "piece.py"  # a file, since `spawn` reads it again
    path.write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTS[title], done.stdout), done.stdout
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_the_code_knows_is_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert RENEW["renewed"](text) == text, "run: .venv/bin/python scripts/renew_docs.py"


def test_what_has_to_be_awaited_is_shown_as_that() -> None:
    shown = RENEW["block"]("AsyncMLCEngine")
    methods = [(k, v) for k, v in vars(AsyncMLCEngine).items() if f"**`{k}`**" in shown]
    assert {"abort", "terminate"} <= {name for name, _ in methods}
    for name, method in methods:
        assert (f"\nasync {name}(" in shown) == inspect.iscoroutinefunction(method), name


def test_every_block_is_on_the_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in RENEW["BLOCKS"] if f"<!-- from the code: {name} -->" not in text] == []


def test_every_error_is_in_the_tree() -> None:
    tree = RENEW["error_tree"]()
    kinds = [name for name, kind in vars(errors).items() if inspect.isclass(kind)]
    assert len(kinds) > 9
    assert [name for name in kinds if not re.search(rf"\b{name}\b", tree)] == []


def test_every_field_for_extra_body_is_named() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)`", text.partition("Fields for `extra_body`: ")[2].partition(".")[0])
    parameters = {*ChatParameters.__required_keys__, *ChatParameters.__optional_keys__}
    assert sorted(named) == sorted(set(ChatCompletionRequest.model_fields) - parameters)


def test_every_metric_is_documented() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    recorder = EngineMetricsRecorder()
    recorder.record_step(1.0, tokens=2, prefill_tokens=1, decode_tokens=1)
    recorder.record_lookup(1, {"position": 1, "seq_id": 0, "cached_token": 1, "prompt_token": 2})
    recorder.record_acceptance(2, 1)
    recorder.record_finished(RequestMetrics(prompt_tokens=1, first_token_at=1.0, finished_at=2.0))
    found = recorder.asdict()
    inner = ("prefix_cache", "spec_decode", "last_finished_request")
    names = [*found, *(name for part in inner for name in found[part])]
    names += found["prefix_cache"]["last_divergence"]
    names += SyncMLCEngine("mock://echo").metrics().metrics
    assert {"cached_token", "accept_len", "ttft_s", "decode_tokens_per_s"} <= set(names)
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", ["README.md", "docs/api.md", "docs/guide.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        if (path.parent / file).suffix == ".png":
            assert (path.parent / file).is_file(), target
            continue
        text = (path.parent / file if file else path).read_text(encoding="utf-8")
        assert not anchor or anchor in [_anchor(title) for title in _titles(text)], target


def _titles(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
