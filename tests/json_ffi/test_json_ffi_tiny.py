"""`JSONFFIEngine` on the tiny random model: prefix cache, structured output, log-probabilities."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from json_ffi_harness import Answer, ask, engine_of

from mlc_llm.json_ffi import JSONFFIEngine
from mlc_llm.serve.config import EngineConfig
from mlc_llm.testing.tiny_model import write_tiny_model

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 20}
USAGE = {"include_usage": True}
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["corner", "edge"]}, "size": {"type": "boolean"}},
    "required": ["kind", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path_factory.mktemp("cache")))
        yield str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(scope="module")
def engine(model: str) -> Iterator[JSONFFIEngine]:
    config = EngineConfig(prefix_cache_max_num_recycling_seqs=2)
    with engine_of(model, engine_config=config) as made:
        yield made


@pytest.fixture(autouse=True, scope="module")
def started(engine: JSONFFIEngine) -> None:
    """Its threads run from one test to the next."""


def json_format(schema: object) -> dict[str, str]:
    return {"type": "json_object", "schema": json.dumps(schema)}


def test_a_prompt_that_was_seen_costs_what_is_new(engine: JSONFFIEngine) -> None:
    engine._test_reset()

    def cost(text: str, **more: Any) -> tuple[int, str]:
        before = engine.metrics()["prefill_tokens_sum"]
        answer = ask(engine, text, **{**GREEDY, **more})
        return int(engine.metrics()["prefill_tokens_sum"] - before), answer.text

    whole, first = cost("a" * 50)
    again, same = cost("a" * 50)
    assert whole > 50 and again == 1 and same == first
    pinned, _ = cost("p" * 50, extra_body={"debug_config": {"pinned_system_prompt": True}})
    for letter in "bcd":
        assert cost(letter * 50)[0] == pinned  # of these the last two are kept
    assert [cost(letter * 50)[0] for letter in "cp"] == [1, 1]
    assert cost("b" * 50)[0] > 50


def test_a_prompt_for_which_the_pages_are_too_few_is_refused(model: str) -> None:
    with engine_of(model, engine_config=EngineConfig(max_total_sequence_length=64)) as few:
        assert ask(few, "a" * 20, max_tokens=1).reason == "length"
        answer = ask(few, "a" * 100)
    assert answer.reason == "error" and "maximum context length is 65 tokens" in answer.text
    error = answer.chunks[0].error
    assert error is not None and error.code == "context_length_exceeded"


@pytest.mark.parametrize("mode", ["jump_forward", "constraint"])
def test_structured_output_beside_free_text_and_a_schema_that_is_wrong(
    engine: JSONFFIEngine, mode: str
) -> None:
    debug = {"debug_config": {"grammar_execution_mode": mode}}
    wrong = {"type": "json_object", "schema": '{"type": "no such type"}'}
    wanted: dict[str, dict[str, Any]] = {
        f"seed {seed}": {"seed": seed, "response_format": json_format(SCHEMA), "extra_body": debug}
        for seed in range(6)
    }
    wanted["free"] = GREEDY
    wanted["wrong"] = {"response_format": wrong}
    answers: dict[str, Answer] = {}

    def run(name: str) -> None:
        more = {"max_tokens": 100, "stream_options": USAGE, **wanted[name]}
        answers[name] = ask(engine, "A point:", **more)

    threads = [threading.Thread(target=run, args=(name,)) for name in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(answer.usages) == 1 for answer in answers.values())
    assert answers["wrong"].reason == "error" and "schema" in answers["wrong"].text
    assert answers["free"].text == ask(engine, "A point:", **GREEDY).text
    for name in wanted.keys() - {"free", "wrong"}:
        found = json.loads(answers[name].text)
        assert found["kind"] in ("corner", "edge") and isinstance(found["size"], bool)


def test_log_probabilities_of_several_choices(engine: JSONFFIEngine) -> None:
    answer = ask(
        engine, "hi", n=3, seed=5, temperature=1, max_tokens=12, logprobs=True, top_logprobs=3,
        stream_options=USAGE,
    )  # fmt: skip
    for index, text in answer.texts.items():
        entries = [
            entry
            for chunk in answer.chunks
            for choice in chunk.choices
            if choice.index == index and choice.logprobs is not None
            for entry in choice.logprobs.content
        ]
        assert b"".join(bytes(e.bytes or []) for e in entries).decode(errors="replace") == text
        for entry in entries:
            values = [one.logprob for one in entry.top_logprobs]
            assert len(values) == 3 and values == sorted(values, reverse=True)
    assert len(answer.texts) == 3 and answer.usages[0].completion_tokens <= 36


def test_seeds_decide(engine: JSONFFIEngine) -> None:
    first, second, other = (
        ask(engine, "hi", temperature=1, max_tokens=20, seed=seed).text for seed in (1, 1, 2)
    )
    assert first == second != other
