"""The program as a process, with the default model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("default_model")]

GREEDY = ("--temperature", "0", "--max-tokens", "24")
QUESTION = "What is the capital of France?"


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "mlc_llm", *args]


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), input=stdin, capture_output=True, text=True, check=False, timeout=300
    )


def test_generate_answers() -> None:
    done = run("generate", QUESTION, *GREEDY)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_json_and_stream_agree_and_standard_input_is_the_argument() -> None:
    streamed = run("generate", QUESTION, *GREEDY).stdout
    whole = json.loads(run("generate", "--json", *GREEDY, stdin=QUESTION).stdout)
    assert whole["text"] == streamed.removesuffix("\n")
    assert whole["usage"]["completion_tokens"] <= 24
    assert whole["timings"]["ttft_s"] > 0


def test_one_seed_one_answer() -> None:
    args = ("generate", "Tell me a story.", "--seed", "7", "--max-tokens", "24", "--quiet")
    assert run(*args).stdout == run(*args).stdout


def test_a_schema_over_text_from_a_pipe(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    (tmp_path / "s.json").write_text(json.dumps(schema))
    flags = ("--schema", str(tmp_path / "s.json"), "--temperature", "0")
    done = run("generate", "Which city is it?", *flags, stdin="Ada lives in Paris.")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() == {"city"}
    more = ("--speculative", "prompt_lookup", "--mode", "server", "--context", "256")
    again = run("generate", "Which city is it?", *flags, *more, stdin="Ada lives in Paris.")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


def test_a_regular_expression_that_is_none() -> None:
    done = run("generate", "Hi", "--regex", "(a")
    assert done.returncode == 2
    assert "--regex = '(a' is not allowed" in done.stderr
    assert done.stderr.count("\n") == 1


def test_chat_remembers() -> None:
    done = run("chat", *GREEDY, stdin="My name is Ada.\nWhat is my name?\n/stats\n")
    assert done.returncode == 0, done.stderr
    assert "Ada" in done.stdout
    assert "2 turns" in done.stdout


def test_ctrl_c_while_it_streams() -> None:
    with subprocess.Popen(
        command("generate", "Count to a million.", "--max-tokens", "-1", "--temperature", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1)
        os.kill(process.pid, signal.SIGINT)
        process.stdout.read()
        errors = process.stderr.read()
    assert process.returncode == 130
    assert b"Traceback" not in errors


@pytest.mark.parametrize(
    "content", [None, b"", b"GGUF", b"not a model file at all, but long enough"]
)
def test_no_such_or_no_good_model(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    done = run("generate", "Hi", "--model", str(path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("mlc_llm: error: ")
    assert "model.gguf" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_prompt_longer_than_the_context() -> None:
    done = run("generate", stdin="word " * 20_000)
    assert done.returncode == 2
    assert "maximum context length" in done.stderr.splitlines()[-1]
