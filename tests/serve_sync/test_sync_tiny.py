"""`SyncMLCEngine` on the tiny random model: the whole way through compiled code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.errors import InvalidField, ModelFileError, ModelNotFound, UnsupportedModel
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import data
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.byte_tokenizer import END_OF_TEXT, IM_END, byte_tokenizer_metadata
from mlc_llm.testing.gguf_writer import write_gguf
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

SIZES = {"general.architecture": "llama", "llama.context_length": 64}
pytestmark = pytest.mark.usefixtures("tiny")
PROMPTS = ["The cat", "a much longer prompt " * 6, "x", "Hello, world. How are you?"]


@pytest.fixture(scope="module")
def engine(tiny: Path) -> SyncMLCEngine:
    return SyncMLCEngine(str(tiny), "cpu")


@pytest.fixture(scope="module")
def narrow(tiny: Path) -> SyncMLCEngine:
    """Few pages and short chunks, so that prompts are cut and sequences preempted."""
    limits = EngineConfig(max_total_sequence_length=256, prefill_chunk_size=32, max_num_sequence=4)
    return SyncMLCEngine(str(tiny), "cpu", engine_config=limits, enable_tracing=True)


@pytest.mark.parametrize(
    "config",
    [
        GenerationConfig(temperature=0, max_tokens=60),
        GenerationConfig(temperature=1.0, seed=3, max_tokens=60, n=3),
        GenerationConfig(temperature=0.8, top_p=0.9, seed=3, max_tokens=60, presence_penalty=0.5),
    ],
)
def test_text_does_not_depend_on_the_company(
    engine: SyncMLCEngine, narrow: SyncMLCEngine, config: GenerationConfig
) -> None:
    alone = [engine.generate(prompt, config)[0][0] for prompt in PROMPTS]
    assert len({tuple(texts) for texts in alone}) == len(PROMPTS)
    assert engine.generate(PROMPTS, config)[0] == alone
    assert narrow.generate(PROMPTS, config)[0] == alone
    assert narrow.trace_recorder is not None
    assert "preempt (0)" in narrow.trace_recorder.dump_json()


PADDED_CASES = {
    "greedy": GenerationConfig(temperature=0, max_tokens=30),
    "drawn": GenerationConfig(temperature=1.0, seed=1, max_tokens=60, n=3),
    "hot": GenerationConfig(temperature=2.0, seed=2, max_tokens=60, n=3),
    "top-k": GenerationConfig(temperature=1.5, top_k=5, seed=3, max_tokens=30),
    "top-p": GenerationConfig(temperature=1.5, top_p=0.8, seed=4, max_tokens=30),
    "min-p": GenerationConfig(temperature=1.5, min_p=0.1, seed=5, max_tokens=30),
    "penalties": GenerationConfig(
        temperature=1.0, frequency_penalty=1.0, logit_bias={299: 2.0}, seed=6, max_tokens=30
    ),
    "schema": GenerationConfig(
        temperature=1.0, response_format={"type": "json_object"}, seed=7, max_tokens=30
    ),
}


@pytest.fixture(scope="module")
def padded(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> SyncMLCEngine:
    """The tiny model with rows behind its tokens, which are far the likeliest."""
    path = tmp_path_factory.mktemp("padded") / "padded.gguf"
    return SyncMLCEngine(str(write_tiny_model(path, shape=TinyShape(padding=20))), "cpu")


@pytest.mark.parametrize("name", PADDED_CASES)
def test_rows_that_are_no_tokens_count_for_nothing(
    engine: SyncMLCEngine, padded: SyncMLCEngine, name: str
) -> None:
    """Not chosen, not reported, and no probability taken away: all is as without them."""
    config = GenerationConfig(logprobs=True, top_logprobs=5).merged_over(PADDED_CASES[name])
    assert padded.generate(PROMPTS, config) == engine.generate(PROMPTS, config)
    quiet = PADDED_CASES[name]
    assert padded.generate(PROMPTS, quiet) == engine.generate(PROMPTS, quiet)


def test_rows_that_are_no_tokens_cannot_be_named(padded: SyncMLCEngine) -> None:
    with pytest.raises(InvalidField, match="token ids are 0 to 299"):
        padded.generate([[300]], GenerationConfig(max_tokens=1))
    with pytest.raises(InvalidField, match="token ids are 0 to 299"):
        padded.generate("x", GenerationConfig(max_tokens=1, logit_bias={300: 1.0}))


def test_a_window_of_few_pages(tiny: Path, engine: SyncMLCEngine) -> None:
    """Answers far longer than the pages, in company and alone; not those without a window."""
    window = {"sliding_window_size": 24, "attention_sink_size": 4, "max_num_sequence": 4}
    config = GenerationConfig(temperature=1.0, seed=5, max_tokens=100)
    few, many = (
        SyncMLCEngine(str(tiny), "cpu", engine_config=EngineConfig(**window, **more))
        for more in (
            {"max_total_sequence_length": 80, "prefill_chunk_size": 20},
            {"max_total_sequence_length": 2048},
        )
    )
    alone = [many.generate(prompt, config)[0][0] for prompt in PROMPTS]
    assert few.generate(PROMPTS, config)[0] == alone
    assert alone != [engine.generate(prompt, config)[0][0] for prompt in PROMPTS]


def test_a_text_longer_than_the_context(tiny: Path) -> None:
    """Prompt and answer beyond it, sequences and chunks of any size: the same text every time."""
    window = {"sliding_window_size": 60, "attention_sink_size": 4, "max_num_sequence": 4}
    few, many = (
        SyncMLCEngine(str(tiny), "cpu", engine_config=EngineConfig(**window, **more))
        for more in (
            {"max_total_sequence_length": 256, "prefill_chunk_size": 23},
            {"max_total_sequence_length": 4096, "prefill_chunk_size": 512},
        )
    )
    prompt = [i * i % 300 for i in range(3 * few.bundle.context_window)]
    config = GenerationConfig(
        temperature=1.0, seed=5, max_tokens=700, n=2, debug_config={"ignore_eos": True}
    )
    (texts,), _ = many.generate([prompt], config)
    assert few.generate([prompt], config)[0] == [texts]
    assert few.metrics()["completion_tokens_sum"] == 2 * 700


def test_logprobs_go_with_the_text(engine: SyncMLCEngine) -> None:
    config = GenerationConfig(temperature=0, max_tokens=12, n=2, logprobs=True, top_logprobs=4)
    texts, logprobs = engine.generate("The cat", config)
    assert logprobs[0] is not None
    for text, sequence in zip(texts[0], logprobs[0], strict=True):
        entries = [json.loads(one) for one in sequence]
        said = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert said.decode(errors="replace") == text
        for entry in entries:
            top = [one["logprob"] for one in entry["top_logprobs"]]
            assert len(top) == 4 and top == sorted(top, reverse=True)
            assert entry["logprob"] == pytest.approx(top[0], abs=1e-4)


def test_stop_string_ends_the_text_before_it(engine: SyncMLCEngine) -> None:
    config = GenerationConfig(temperature=0, max_tokens=40)
    (text,) = engine.generate("The cat", config)[0][0]
    stop = next(text[i : i + 3] for i in range(5, 35) if text[i : i + 3].isascii())
    short = GenerationConfig(temperature=0, max_tokens=40, stop_strs=[stop])
    assert engine.generate("The cat", short)[0][0] == [text[: text.index(stop)]]


def test_pages_are_all_free_afterwards(engine: SyncMLCEngine, narrow: SyncMLCEngine) -> None:
    for one in (engine, narrow):
        one.reset()
        with pytest.raises(InvalidField, match="prompt token id"):
            one.generate([[1], [10**6]], GenerationConfig())
        config = GenerationConfig(max_tokens=5, debug_config={"ignore_eos": True})
        texts, _ = one.generate([[1, 2, 3]], config)
        assert len(texts) == 1
        assert one.metrics()["completion_tokens_sum"] == 5


def test_what_a_model_folder_says(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.gguf").symlink_to(tiny)
    generation = {"eos_token_id": [3, 5], "temperature": 0.25, "top_k": 7, "unknown": 1}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    bundle = open_model(str(folder))
    assert bundle.stop_token_ids == {3, 5, IM_END, END_OF_TEXT}
    assert bundle.defaults.given == {"temperature": 0.25, "top_k": 7}
    assert bundle.chat_template is not None and bundle.context_window > 0
    file_alone = open_model(str(folder / "model.gguf"))
    assert file_alone.stop_token_ids == {IM_END, END_OF_TEXT}
    assert file_alone.defaults.given == {}
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"generation_config\.json"):
        open_model(str(folder))


def test_mlc_chat_config_comes_first(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(tiny)
    chat = {
        "model_type": "llama",
        "quantization": "q4f16_1",
        "vocab_size": 300,
        "context_window_size": 64,
        "sliding_window_size": 48,
        "attention_sink_size": 2,
        "temperature": 0.5,
        "eos_token_id": 9,
        "conv_template": "chatml",
    }
    (tmp_path / "mlc-chat-config.json").write_text(json.dumps(chat))
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.1, "top_p": 0.5}')
    bundle = open_model(str(tmp_path))
    assert bundle.context_window == 64 and 9 in bundle.stop_token_ids
    assert bundle.defaults.given == {"temperature": 0.5, "top_p": 0.5}
    engine = SyncMLCEngine(str(tmp_path))
    complete = engine.engine_config
    assert (complete.sliding_window_size, complete.attention_sink_size) == (48, 2)
    request = engine.create_request("a", data.TextData("x"), GenerationConfig(top_p=0.75))
    assert request.generation_config.given == {"temperature": 0.5, "top_p": 0.75}


CHAT = {"model_type": "llama", "quantization": "q0f32", "vocab_size": 9, "conv_template": "chatml"}


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("generation_config.json", {"temperature": "hot"}, "temperature = 'hot'"),
        ("generation_config.json", {"top_k": 2**31}, f"top_k = {2**31}"),
        ("mlc-chat-config.json", {**CHAT, "eos_token_id": "2"}, "eos_token_id = '2'"),
        ("mlc-chat-config.json", {**CHAT, "context_window_size": 1.5}, "context_window_size = 1.5"),
        ("mlc-chat-config.json", {"vocab_size": 9}, "model_type"),
    ],
)
def test_a_wrong_value_in_a_model_folder_names_file_and_field(
    tiny: Path, tmp_path: Path, name: str, values: dict[str, Any], said: str
) -> None:
    (tmp_path / "model.gguf").symlink_to(tiny)
    (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises(ModelFileError, match=rf"{name}: .*{re.escape(said)}"):
        open_model(str(tmp_path))


def test_what_a_file_says_of_sampling(tmp_path: Path) -> None:
    """As llama.cpp's converter writes it; a JSON file beside it comes first."""
    stated = {"temp": 0.6, "top_k": -1, "top_p": 0.95, "min_p": 0.05, "penalty_repeat": 1.05}
    keys = {f"general.sampling.{end}": value for end, value in stated.items()}
    path, metadata = tmp_path / "a.gguf", {**byte_tokenizer_metadata(), **SIZES}
    write_gguf(path, {**metadata, **keys}, {})
    expected = {
        "temperature": 0.6, "top_k": 0, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.05,
    }  # fmt: skip
    assert open_model(str(path)).defaults.given == expected
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.25, "do_sample": false}')
    assert open_model(str(tmp_path)).defaults.given == expected | {"temperature": 0.0}
    write_gguf(path, {**metadata, "general.sampling.temp": "hot"}, {})
    with pytest.raises(ModelFileError, match=r"a\.gguf: temperature = 'hot'"):
        open_model(str(path))


def test_a_named_template_serves_where_the_file_has_none(tmp_path: Path) -> None:
    metadata = {k: v for k, v in byte_tokenizer_metadata().items() if "chat_template" not in k}
    write_gguf(tmp_path / "a.gguf", {**metadata, **SIZES}, {})
    chat = {"model_type": "llama", "quantization": "q0f32", "vocab_size": 300}
    for name in ("chatml", "no_such_template"):
        text = json.dumps({**chat, "conv_template": name})
        (tmp_path / "mlc-chat-config.json").write_text(text)
        if name == "chatml":
            bundle = open_model(str(tmp_path))
    assert isinstance(bundle.chat_template, Conversation)
    assert bundle.defaults.given == {"stop_strs": ["<|im_end|>"]} and 2 in bundle.stop_token_ids
    with pytest.raises(UnsupportedModel, match="no_such_template"):
        open_model(str(tmp_path))


def test_models_that_are_not_there(tiny: Path) -> None:
    with pytest.raises(ModelNotFound, match="no_such_model"):
        SyncMLCEngine("no_such_model")
    with pytest.raises(ModelNotFound, match="model_lib"):
        SyncMLCEngine(str(tiny), model_lib="no_such_library")


def test_a_string_holds_control_tokens_where_the_caller_says_so(engine: SyncMLCEngine) -> None:
    text = "a<|im_end|>b"
    config = GenerationConfig(max_tokens=1)
    assert engine.generate(text, config).usages[0].prompt_tokens > 9
    assert engine.generate(text, config, special=True).usages[0].prompt_tokens == 3
    chat = engine.chat_prompt([{"role": "user", "content": "hello"}])
    written = engine.tokenizer.decode(chat)
    assert engine.tokenizer.encode(written, special=True) == chat
    greedy = GenerationConfig(temperature=0, max_tokens=9)
    answer = engine.chat("hello", greedy)
    assert engine.generate(written, greedy, special=True)[0] == [answer.texts]
    assert answer.usage.prompt_tokens == len(chat)
