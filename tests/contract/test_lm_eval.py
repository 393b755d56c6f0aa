"""lm-eval against the server: the log-likelihoods are those of its own Hugging Face backend, which
computes the same weights in float32."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract_server import KEY

pytest.importorskip("lm_eval", reason="needs `pip install lm-eval[api] torch transformers gguf`")
torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from oracle import Oracle  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

pytestmark = [pytest.mark.model, pytest.mark.slow]
CLOSE = 0.02
"""Of the log-likelihood, for each token."""
QUESTIONS = [
    ("The capital of France is", ["Paris", "London", "Berlin"], 0),
    ("Water freezes at a temperature of", ["0 degrees Celsius", "50 degrees Celsius"], 0),
    ("The opposite of hot is", ["warm", "cold", "red", "yesterday"], 1),
    ("Two plus two is", ["five", "four", "twenty-two"], 1),
    ("A week has", ["seven days", "nine days", "four months"], 0),
    ("Le café coûte trois euros, donc deux cafés coûtent", ["six euros", "dix euros"], 0),
    ("def add(a, b):\n    return", ["a + b", "b / 0", "print"], 0),
    ("The sun rises in the", ["west", "east", "🌙 night"], 1),
]
TEXTS = [
    "The old bridge had stood for two hundred years before the flood. Nobody in the village could "
    "remember a spring with so much rain, and the mayor had asked everyone to stay at home.",
    "In 1969, two people walked on the Moon. They stayed for about two and a half hours.",
    "Zürich, Genève und Basel – größere Städte der Schweiz: 1.5 million people, 3 languages. " * 4,
]
CHOICES = """
task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""
PERPLEXITY = """
task: local_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}]
"""


@pytest.fixture(scope="module")
def oracle(default_model: Path) -> Oracle:
    return Oracle(default_model)


@pytest.fixture(scope="module")
def folder(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model for Hugging Face, of dequantised weights."""
    made, config = tmp_path_factory.mktemp("hugging-face"), copy.deepcopy(oracle.model.config)
    del config.quantization_config  # else the weights count as those of a GGUF file
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(oracle.model.state_dict())
    plain.save_pretrained(made)
    oracle.tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskManager]:
    place = tmp_path_factory.mktemp("tasks")
    docs = [{"question": q, "choices": c, "answer": a} for q, c, a in QUESTIONS]
    for name, rows, form in (
        ("choices", docs, CHOICES),
        ("texts", [{"text": one} for one in TEXTS], PERPLEXITY),
    ):
        file = place / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (place / f"{name}.yaml").write_text(form.format(file=file), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_CACHE", str(place / "datasets"))
        patch.setenv("OPENAI_API_KEY", KEY)
        yield TaskManager(include_path=str(place), include_defaults=False)


def likelihoods(tasks: TaskManager, task: str, model: str, arguments: dict[str, Any]) -> Any:
    """Of each document, of each of its questions: the answer, and the text that it is about."""
    found = simple_evaluate(
        model=model, model_args=arguments, tasks=[task], task_manager=tasks,
        batch_size=1, log_samples=True, bootstrap_iters=0,
    )  # fmt: skip
    assert found is not None
    samples = sorted(found["samples"][task], key=lambda one: one["doc_id"])
    return [(one["arguments"], [two[0] for two in one["resps"]]) for one in samples]


def served(tasks: TaskManager, task: str, address: str, **more: Any) -> Any:
    url = f"{address}/v1/completions"
    arguments = {"base_url": url, "model": "default", "num_concurrent": 4, **more}
    return likelihoods(tasks, task, "local-completions", arguments)


def expected(tasks: TaskManager, task: str, folder: Path) -> Any:
    arguments = {"pretrained": str(folder), "dtype": "float32", "device": "cpu"}
    return likelihoods(tasks, task, "hf", arguments)


@pytest.mark.parametrize("tokens", ["remote", "huggingface"])
def test_choices(
    tasks: TaskManager, address: str, folder: Path, oracle: Oracle, tokens: str
) -> None:
    more = {"tokenizer": str(folder)} if tokens == "huggingface" else {"auth_token": KEY}
    found = served(tasks, "local_choices", address, tokenizer_backend=tokens, **more)
    exact = expected(tasks, "local_choices", folder)
    assert len(found) == len(exact) == len(QUESTIONS)
    for (asked, answers), (same, others) in zip(found, exact, strict=True):
        assert asked == same
        for (_, text), own, other in zip(asked, answers, others, strict=True):
            count = len(oracle.encode(text))
            assert abs(own[0] - other[0]) <= CLOSE * count, text
            assert own[1] == other[1], f"only one of them says that {text!r} is the likeliest"


@pytest.mark.parametrize("tokens", ["remote", "huggingface"])
def test_whole_texts(
    tasks: TaskManager, address: str, folder: Path, oracle: Oracle, tokens: str
) -> None:
    more = {"tokenizer": str(folder)} if tokens == "huggingface" else {"auth_token": KEY}
    found = served(tasks, "local_texts", address, tokenizer_backend=tokens, **more)
    exact = expected(tasks, "local_texts", folder)
    assert len(found) == len(exact) == len(TEXTS)
    for text, (_, (own,)), (_, (other,)) in zip(TEXTS, found, exact, strict=True):
        assert other < -10 and abs(own - other) <= CLOSE * len(oracle.encode(text)), text


def test_it_finds_our_tokenizer_by_itself(address: str) -> None:
    from lm_eval.utils import RemoteTokenizer, check_remote_tokenizer_support

    url = f"{address}/v1/completions"
    assert check_remote_tokenizer_support(url, auth_token=KEY)
    tokenizer = RemoteTokenizer(url, auth_token=KEY)
    ends = {"<|endoftext|>": 0, "<|im_end|>": 2}
    assert tokenizer.eos_token_id == ends[str(tokenizer.eos_token)]
    assert tokenizer.bos_token_id == 1
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
    assert os.environ.get("OPENAI_API_KEY") in (None, KEY)
