"""The float32 oracle: what Transformers computes from the dequantised weights of a GGUF file.

    python benchmarks/oracle.py [--model FILE.gguf] [--out FOLDER]

Needs the `oracle` extra (torch, transformers, gguf). Writes into a folder named by the file's
content under the cache folder (about 250 MB for a vocabulary of 49,152):

* `logits.npy`     float32 [prompts * 64, V]: raw logits that predict each forced id
* `oracle.json`    the sequences, where their forced ids start, log-probabilities of the
                   perplexity text, versions

`accuracy.py` compares our own logits with it. Before writing, the oracle must itself give the
greedy answers of `greedy.json` when the file is the default model.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from agreement import Case
from common import (
    FORCED,
    HERE,
    digest,
    model_path,
    oracle_folder,
    print_configuration,
    read_json,
    token_logprobs,
    windows,
)
from oracle_tokenizer import oracle_tokenizer
from transformers import AutoModelForCausalLM


class Oracle:
    """A Transformers model in float32 and its tokenizer, both out of one GGUF file."""

    def __init__(self, path: Path) -> None:
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        self.tokenizer = oracle_tokenizer(path)
        self.model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()

    def logits(self, ids: list[int]) -> np.ndarray:
        """Raw float32 logits [len(ids), V] of one fresh sequence."""
        return np.asarray(self.model(torch.tensor([ids])).logits[0].numpy())

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def chat(self, question: str) -> list[int]:
        """The question as the model's template shows it; itself if there is no template."""
        if self.tokenizer.chat_template is None:
            return list(self.tokenizer(question).input_ids)
        messages = [{"role": "user", "content": question}]
        template = self.tokenizer.apply_chat_template
        return self.encode(template(messages, add_generation_prompt=True, tokenize=False))

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """`count` most likely ids, one after the other. End tokens do not end the answer."""
        step = self.model(torch.tensor([ids]), use_cache=True)
        answer = [int(step.logits[0, -1].argmax())]
        while len(answer) < count:
            last = torch.tensor([answer[-1:]])
            step = self.model(last, past_key_values=step.past_key_values, use_cache=True)
            answer.append(int(step.logits[0, -1].argmax()))
        return answer


def check_greedy(oracle: Oracle, path: Path) -> None:
    """Raise SystemExit if the oracle does not give the known answers of the default model."""
    known = read_json("greedy.json")
    for case in known["cases"] if digest(path) == known["model_sha256"] else ():
        answer = oracle.greedy(case["prompt_ids"], len(case["answer_ids"]))
        if answer != case["answer_ids"]:
            raise SystemExit(f"the greedy answer to {case['prompt']!r} is not the known one")


def forced_sequences(oracle: Oracle) -> list[Case]:
    """20 sequences, each with 64 forced ids at its end."""
    prompts = read_json("prompts.json")
    cases: list[Case] = []
    for question in prompts["chat"]:
        prompt = oracle.chat(question)
        ids = prompt + oracle.greedy(prompt, FORCED)
        cases.append({"name": question, "kind": "chat", "ids": ids, "start": len(prompt)})
    for name, text in prompts["text"].items():
        ids = oracle.encode(text)
        while len(ids) <= FORCED:  # few tokens in a large vocabulary
            ids += oracle.encode(f" {text}")
        cases.append({"name": name, "kind": "text", "ids": ids, "start": len(ids) - FORCED})
    return cases


def forced_logits(oracle: Oracle, cases: list[Case]) -> np.ndarray:
    """Logits that predict the forced ids: the logits of the position before each."""
    rows = [oracle.logits(case["ids"])[case["start"] - 1 : -1] for case in cases]
    return np.concatenate(rows)


class TextLogprobs(TypedDict):
    """A text, and the log-probability of each of its ids that is predicted."""

    ids: list[int]
    logprobs: list[float]


def perplexity_text(oracle: Oracle) -> TextLogprobs:
    """The public-domain text with its log-probabilities."""
    ids = oracle.encode((HERE / "public_domain.txt").read_text(encoding="utf-8"))
    pieces = windows(ids)
    logprobs = [token_logprobs(oracle.logits(piece)[:-1], piece[1:]) for piece in pieces]
    return {"ids": ids, "logprobs": np.concatenate(logprobs).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="GGUF file (the default model if not given)")
    parser.add_argument("--out", help="folder for the answers (under the cache if not given)")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)

    path = model_path(arguments.model)
    folder = oracle_folder(path, arguments.out)
    versions = {name: version(name) for name in ("torch", "transformers", "gguf")}
    print_configuration("float32 oracle", model=path.name, out=folder, **versions)
    oracle = Oracle(path)
    check_greedy(oracle, path)
    cases = forced_sequences(oracle)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "logits.npy", forced_logits(oracle, cases))
    text = perplexity_text(oracle)
    answers = {"versions": versions, "cases": cases, "perplexity": text}
    (folder / "oracle.json").write_text(json.dumps(answers), encoding="utf-8")
    mean = float(np.mean(text["logprobs"]))
    print(f"{len(cases)} prompts x {FORCED} positions; perplexity {np.exp(-mean):.4f}")


if __name__ == "__main__":
    main()
