"""Structured output through the engine core: finish rules, batches, failures, both modes."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from core_harness import Harness, Seen, prompt_of
from eager_drafts import draft_always
from grammar_tools import PADDED, fits, schemas, tokenizer
from hostile_grammars import lark, regex, schema
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_tools import Seer

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.core.mock_echo import echo_config, echo_core
from mlc_llm.serve.core.speculation.drafter import Drafter
from mlc_llm.serve.core.speculation.prompt_lookup import PromptLookup
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.byte_tokenizer import IM_END, VOCABULARY_SIZE
from mlc_llm.testing.fake_runner import FakeRunner

MODES = ("jump_forward", "constraint")
ADDRESS = {
    "type": "object",
    "properties": {
        "first name": {"type": "string", "minLength": 0, "maxLength": 6},
        "house number": {"type": "integer", "minimum": 1, "maximum": 99},
        "colour": {"enum": ["red", "green", None]},
        "rooms": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["first name", "house number", "colour", "rooms"],
    "additionalProperties": False,
}


_WAYS = range(2100)
WIDE_AFTER_THREE = "\n".join(
    [
        "start: /[ab]{3}/ rest",
        "rest: " + " | ".join(f"way{i}" for i in _WAYS),
        *(f'way{i}: "x" way{i} | "y"' for i in _WAYS),
    ]
)
"""More ways to go on behind the third letter than the library follows."""
SCHEMAS = {
    "address": ADDRESS,
    "one value": {"const": {"a long name of a field": ["and a long", "value of it"]}},
    "choices": {"enum": ["the one there", "the other there", "then", 12, 123, None]},
    "forced parts": {
        "type": "array",
        "items": {"anyOf": [{"const": {"the name": True}}, {"const": {"the number": [1, 2, 3]}}]},
        "minItems": 2,
        "maxItems": 3,
    },
    "letters": {"type": "string", "pattern": "^[äöü]{2} and (the|then|there) [0-9]{3}$"},
}


def harness_of(
    runner: FakeRunner | None = None, drafter: Drafter | None = None, **config: Any
) -> Harness:
    """A core whose tokenizer ends answers with IM_END and has fewer tokens than the model."""
    runner = runner or FakeRunner(vocab_size=PADDED, num_pages=256, max_batch_tokens=256)
    harness = Harness(runner, EngineConfig(**config))
    harness.core = EngineCore(
        runner, tokenizer(), harness.config, stop_token_ids=[IM_END], drafter=drafter
    )
    draft_always(harness.core, 16)
    return harness


def debug(mode: str, **more: Any) -> dict[str, Any]:
    return {"grammar_execution_mode": mode, **more}


def ask(harness: Harness, name: str, wanted: dict[str, Any] | None, **config: Any) -> None:
    values = {"temperature": 1.0, "max_tokens": 400, "seed": 1, **config}
    if wanted is None:  # the fake model would choose from the padding as well
        values["logit_bias"] = dict.fromkeys(range(VOCABULARY_SIZE, PADDED), -100.0)
    harness.add(name, prompt_of(9), response_format=wanted, **values)


def text_of(tokens: Sequence[int]) -> str:
    return codecs.getincrementaldecoder("utf-8")().decode(
        b"".join(map(tokenizer().token_bytes, tokens))
    )


def answer(wanted: dict[str, Any], **config: Any) -> tuple[str, str | None, Seen]:
    """The text and the finish reason of a request that is alone."""
    harness = harness_of()
    ask(harness, "a", wanted, **config)
    seen = harness.run()["a"]
    return text_of(seen.tokens[0]), seen.reasons[0], seen


@pytest.mark.parametrize("mode", MODES)
def test_fifty_seeds_parse_and_fit_beside_free_text(mode: str) -> None:
    harness = harness_of(max_num_sequence=4)
    for seed in range(50):
        ask(harness, f"json {seed}", schema(ADDRESS), seed=seed, debug_config=debug(mode))
        if seed % 5 == 0:
            ask(harness, f"free {seed}", None, seed=seed, max_tokens=30)
    seen = harness.run(limit=20_000)
    for seed in range(50):
        one = seen[f"json {seed}"]
        assert one.reasons == ["stop"]
        assert fits(json.loads(text_of(one.tokens[0])), ADDRESS)


@given(schemas(), st.integers(0, 2**32), st.sampled_from(MODES), st.integers(1, 300))
def test_whatever_stops_parses_and_fits(value: Any, seed: int, mode: str, most: int) -> None:
    text, reason, seen = answer(schema(value), seed=seed, max_tokens=most, debug_config=debug(mode))
    assert seen.usage is not None and seen.usage["completion_tokens"] <= most
    if reason == "stop":
        assert fits(json.loads(text), value)
    else:
        assert reason == "length" and len(seen.tokens[0]) == most


VARIANTS: dict[str, dict[str, Any]] = {
    "reported": {"logprobs": True, "top_logprobs": 3},
    "asked for each": {"debug_config": debug("constraint")},
    "both": {"debug_config": debug("constraint"), "logprobs": True},
}


def compared(wanted: dict[str, Any], seed: int) -> None:
    """AssertionError unless the answer is the same however it comes about."""
    config = {"seed": seed, "max_tokens": 60}
    plain = answer(wanted, **config)[2]
    for name, variant in VARIANTS.items():
        found = answer(wanted, **config, **variant)[2]
        assert (found.tokens, found.reasons) == (plain.tokens, plain.reasons), (name, seed)
        for drafter in (Seer(seed), PromptLookup()):
            harness = harness_of(drafter=drafter)
            ask(harness, "a", wanted, **config, **variant)
            found = harness.run()["a"]
            assert (found.tokens, found.reasons) == (plain.tokens, plain.reasons), (name, seed)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_same_tokens_whatever_is_reported_and_however_forced_text_is_added(name: str) -> None:
    """A token that its grammar forces uses no random number, so none behind it changes."""
    for seed in range(4):
        compared(schema(SCHEMAS[name]), seed)


@pytest.mark.parametrize(
    "wanted",
    [
        regex("[ab]{2}" + "a long text, then the other one; " * 3 + "[cd]{9}"),
        regex("begin the[a-e]{3}"),
        {"type": "json_object"},
        lark('start: "the " name " said: " /[a-z ]{1,9}/\nname: "cat" | "caterpillar"'),
    ],
    ids=["long", "at the start", "object", "lark"],
)
def test_the_same_tokens_under_other_grammars(wanted: dict[str, Any]) -> None:
    for seed in range(4):
        compared(wanted, seed)


@settings(max_examples=settings.default.max_examples // 3)  # ten answers each
@given(schemas(), st.integers(0, 2**32))
def test_the_same_tokens_under_any_schema(value: Any, seed: int) -> None:
    compared(schema(value), seed)


@pytest.mark.parametrize("mode", MODES)
def test_free_text_is_the_same_with_a_grammar_beside_it(mode: str) -> None:
    texts = []
    for beside in (False, True):
        harness = harness_of()
        ask(harness, "free", None, max_tokens=40, seed=5)
        if beside:
            ask(harness, "json", schema(ADDRESS), debug_config=debug(mode))
        texts.append(harness.run()["free"].tokens)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_does_not_depend_on_its_company_or_on_preemption(mode: str) -> None:
    _, _, alone = answer(schema(ADDRESS), seed=3, debug_config=debug(mode))
    tight = FakeRunner(vocab_size=PADDED, num_pages=9, max_num_sequence=4, max_batch_tokens=16)
    harness = harness_of(tight)
    for name in "abcd":
        ask(harness, name, schema(ADDRESS), seed=3, debug_config=debug(mode))
    seen = harness.run(limit=20_000)
    assert harness.core.num_preemptions
    assert all(seen[name].tokens == alone.tokens for name in "abcd")


def test_sequences_follow_the_grammar_each_on_its_own() -> None:
    harness = harness_of()
    ask(harness, "a", schema(ADDRESS), n=3)
    seen = harness.run()["a"]
    texts = [text_of(tokens) for tokens in seen.tokens]
    assert len(set(texts)) == 3 and all(fits(json.loads(text), ADDRESS) for text in texts)
    assert seen.usage is not None
    assert seen.usage["completion_tokens"] == sum(map(len, seen.tokens))


def test_jump_forward_takes_fewer_steps_and_counts_its_tokens() -> None:
    steps = {}
    for mode in MODES:
        harness = harness_of()
        wanted = schema({"const": {"a long name of a field": ["and a long", "value of it"]}})
        ask(harness, "a", wanted, debug_config=debug(mode))
        seen = harness.run()["a"]
        assert json.loads(text_of(seen.tokens[0]))
        assert seen.usage is not None
        jumped = seen.usage["extra"]["jump_forward_tokens"]
        metrics = harness.core.metrics()
        assert metrics["jump_forward_tokens_sum"] == jumped
        assert (metrics["engine_jump_forward_time_sum"] > 0) == (jumped > 0)
        assert (jumped > 30) == (mode == "jump_forward")
        steps[mode] = harness.steps
    assert steps["jump_forward"] <= 5
    assert steps["constraint"] > 40


def test_forced_text_takes_no_token_from_running_streams() -> None:
    runner = FakeRunner(vocab_size=PADDED, max_batch_tokens=4, num_pages=64)
    harness = harness_of(runner)
    ask(harness, "forced", regex("[ab]{40}" + "a long text " * 9), max_tokens=200)
    for name in "ab":
        ask(harness, name, None, max_tokens=60, seed=6, debug_config={"ignore_eos": True})
    while len(harness.seen["forced"].tokens[0]) <= 40:
        harness.step()
    before = [len(harness.seen[name].tokens[0]) for name in "ab"]
    for _ in range(10):
        harness.step()
    after = [len(harness.seen[name].tokens[0]) for name in "ab"]
    assert after == [count + 10 for count in before]
    assert harness.run()["forced"].reasons == ["stop"]


def test_forced_text_is_no_prompt_for_which_chunked_prefill_would_stop_the_others() -> None:
    harness = harness_of(prefill_mode="chunked")
    ask(harness, "free", None, max_tokens=100, seed=6, debug_config={"ignore_eos": True})
    ask(harness, "forced", regex("(ab|cd){600}"), max_tokens=1300)
    harness.step()
    harness.step()
    before = {name: len(seen.tokens[0]) for name, seen in harness.seen.items()}
    for _ in range(50):
        harness.step()
    after = {name: len(seen.tokens[0]) for name, seen in harness.seen.items()}
    assert after == {"free": before["free"] + 50, "forced": before["forced"] + 100}


def test_log_probabilities_are_given_for_every_token() -> None:
    _, _, seen = answer(schema(ADDRESS), logprobs=True, top_logprobs=2)
    assert len(seen.logprobs[0]) == len(seen.tokens[0])


def test_the_token_that_completes_the_text_is_shown() -> None:
    assert answer(regex("[ab]{5}c"))[:2][1] == "stop"
    text = answer(regex("[ab]{5}c"))[0]
    assert len(text) == 6 and text.endswith("c")


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_end_token_ends_a_text_that_could_go_on(ignore_eos: bool) -> None:
    bias = {IM_END: 100.0}
    text, reason, seen = answer(
        regex("[ab]{3,}"), logit_bias=bias, debug_config={"ignore_eos": ignore_eos}
    )
    assert reason == "stop" and len(text) == 3
    assert IM_END not in seen.tokens[0]


def test_max_tokens_cuts_with_length() -> None:
    for mode in MODES:
        text, reason, _ = answer(schema(ADDRESS), max_tokens=5, debug_config=debug(mode))
        assert reason == "length" and text.startswith('{"fir')


def test_a_stop_string_counts_in_forced_text_too() -> None:
    for mode in MODES:
        harness = harness_of()
        ask(harness, "a", schema(ADDRESS), stop_strs=["st na"], debug_config=debug(mode))
        seen = harness.run()["a"]
        whole = b"".join(map(tokenizer().token_bytes, seen.tokens[0]))
        assert seen.reasons == ["stop"]
        assert whole[: len(whole) - seen.cut[0]] == b'{"fir'


@pytest.mark.parametrize("mode", MODES)
def test_a_grammar_that_fails_midway_fails_its_request_alone(mode: str) -> None:
    harness = harness_of()
    harness.expected_error = "the grammar cannot be used"
    ask(harness, "bad", lark(WIDE_AFTER_THREE), debug_config=debug(mode))
    ask(harness, "good", schema(ADDRESS), debug_config=debug(mode))
    ask(harness, "free", None, max_tokens=20)
    seen = harness.run()
    assert seen["bad"].reasons == ["error"] and seen["bad"].error
    assert seen["good"].reasons == ["stop"]
    assert seen["free"].reasons[0] in ("length", "stop")
    assert seen["bad"].usage is not None


def test_a_runner_that_ignores_the_mask_fails_the_request() -> None:
    harness = harness_of()
    harness.expected_error = "the grammar cannot be used"
    ask(harness, "bad", regex("a{5}"))
    harness.core._runner.run = _without_masks(harness.runner)  # type: ignore[method-assign]
    assert harness.run()["bad"].reasons == ["error"]


def _without_masks(runner: FakeRunner) -> Any:
    run = runner.run

    def unmasked(batch: Any) -> Any:
        rows = [
            replace(row, samplings=[replace(one, allowed=None) for one in row.samplings])
            for row in batch.rows
        ]
        return run(replace(batch, rows=rows))

    return unmasked


def test_a_wrong_schema_is_refused_before_it_is_queued() -> None:
    harness = harness_of()
    ask(harness, "good", schema(ADDRESS))
    with pytest.raises(InvalidField, match=r"response_format.schema .* no text satisfies it"):
        ask(harness, "bad", schema({"$ref": "#"}))
    config = GenerationConfig(response_format=schema({"type": "strnig"}))
    prepared = harness.core.admission.prepare(Request("worse", [TokenData([1])], config))
    assert isinstance(prepared.error, InvalidField) and "strnig" in str(prepared.error)
    assert not harness.core.has_request("bad")
    assert harness.run()["good"].reasons == ["stop"]


def test_an_abort_in_the_middle_leaves_nothing() -> None:
    harness = harness_of()
    ask(harness, "a", schema(ADDRESS))
    for _ in range(4):
        harness.step()
    harness.abort("a")
    assert harness.run()["a"].reasons == ["abort"]


@pytest.mark.parametrize("wanted", [ADDRESS, {"type": "strnig"}])
def test_the_echo_engine_repeats_the_prompt_and_reads_no_grammar(wanted: dict[str, Any]) -> None:
    core = echo_core(tokenizer(), echo_config(EngineConfig()))
    config = GenerationConfig(response_format=schema(wanted))
    outputs = core.add_request(Request("a", [TokenData([1, 2, 3])], config))
    while not core.is_idle:
        outputs += core.step()
    tokens = [t for out in outputs[:-1] for t in out.unpack()[1][0].delta_token_ids]
    assert tokens == [1, 2, 3]
    usage = json.loads(outputs[-1].unpack()[1][0].request_final_usage_json_str or "")
    assert json.loads(usage["extra"]["response_format"]["schema"]) == wanted
