"""What draft heads learn from: answers of the model itself, each token with its hidden vector.

No prompt is one of `prompts.json`, with which heads are tried.
"""

from __future__ import annotations

import itertools
from collections import abc
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from common import HERE

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import Runner
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_lengths import DraftLengths
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Offer
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.request import Request
from mlc_llm.tokenizers import Tokenizer

STREAMS, CONTEXT = 32, 512
CONFIG = EngineConfig(
    max_num_sequence=STREAMS,
    max_total_sequence_length=STREAMS * CONTEXT,
    max_single_sequence_length=CONTEXT,
    prefill_chunk_size=512,
    prefix_cache_mode="disable",
    speculative_mode="disable",
)
WITH_VECTORS = EngineConfig(
    max_num_sequence=STREAMS,
    prefix_cache_mode="disable",
    speculative_mode="medusa",
    additional_models=["none: the drafter only listens"],
)
END = "<|im_end|>"
TASKS = (
    "Explain {} in simple words.",
    "What are the most important facts about {}?",
    "Write a short story about {}.",
    "Write a poem about {}.",
    "Give me a list of ten ideas about {}.",
    "How do I learn more about {}? Give me the steps.",
    "Write an email to a friend about {}.",
    "What are the advantages and disadvantages of {}?",
)
TOPICS = (
    "volcanoes", "bread", "chess", "the moon", "bicycles", "electricity", "democracy", "bees",
    "music", "trees", "the ocean", "trains", "mathematics", "painting", "health", "sleep",
    "computers", "history", "rivers", "dogs", "cooking for children", "gardens", "winter",
    "friendship", "money", "books", "photography", "the human heart", "languages", "robots",
    "mountains", "tea", "football", "plastic", "insects", "dreams", "bridges", "schools",
    "solar energy", "a lost key", "old maps", "the Roman empire", "birds", "clouds",
)  # fmt: skip
CODE = (
    "reverses a list", "counts the words of a text", "finds prime numbers", "sorts a dictionary",
    "reads a CSV file", "computes a factorial", "checks a palindrome", "merges two lists",
    "finds the largest number", "removes duplicates", "converts temperatures", "draws a triangle",
)  # fmt: skip
Vectors = npt.NDArray[np.float16]


@dataclass
class Answer:
    """Known tokens, and vectors [n, hidden]: row i is that with which token `first + i` was
    chosen."""

    tokens: list[int]
    first: int
    vectors: Vectors


@dataclass
class _Heard:
    sequence: Sequence
    first: int
    vectors: list[Vectors] = field(default_factory=list)


class Listener:
    """A `Drafter` that drafts nothing and notes the hidden vectors of each sequence."""

    def __init__(self) -> None:
        self.heard: dict[tuple[int, int], _Heard] = {}

    def offers(self, sequences: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[Offer]:
        for one in sequences:
            if one.hidden is None or one.hidden[0] != one.known:
                continue
            heard = self.heard.get(one.key)
            # A step that reads a prompt beside others asks no drafter: all begins anew behind it.
            if heard is None or heard.first + len(heard.vectors) != one.known - 1:
                heard = self.heard[one.key] = _Heard(one, one.known - 1)
            heard.vectors.append(np.array(one.hidden[1], np.float16))
        return [Offer()] * len(sequences)

    def cost(self, rows: int, depth: int) -> float:
        return 0.0

    def draft(self, drafts: abc.Sequence[DraftSequence], lengths: abc.Sequence[int]) -> None:
        raise AssertionError("nothing was offered")

    def forget(self, sequence: Sequence) -> None:
        """What was heard is wanted later."""

    def reset(self) -> None:
        self.heard.clear()

    def check_integrity(self) -> None:
        """Nothing can disagree here."""

    def answers(self) -> list[Answer]:
        return [
            Answer([*one.sequence.tokens(0, one.sequence.known)], one.first, np.array(one.vectors))
            for one in self.heard.values()
        ]


class EachStep(DraftLengths):
    """Asks the drafter in each step."""

    patience = 0


def prompts() -> list[str]:
    """Chats in the template of the default model, and free texts; those that differ most come one
    behind the other, so that a few of them are a fair choice."""
    asked = [task.format(topic) for topic, task in itertools.product(TOPICS, TASKS)]
    asked += [f"Write a Python function that {what}." for what in CODE]
    chats = [f"<|im_start|>user\n{one}<|im_end|>\n<|im_start|>assistant\n" for one in asked]
    text = (HERE / "public_domain.txt").read_text(encoding="utf-8")
    texts = [text[start : start + 300] for start in range(0, len(text) - 300, 300)]
    found = chats + texts
    order = np.random.default_rng(0).permutation(len(found))
    return [found[i] for i in order]


def write_answers(
    runner: Runner,
    tokenizer: Tokenizer,
    count: int,
    length: int,
) -> abc.Iterator[list[Answer]]:
    """Answers to `count` prompts, in portions; half of them greedy, half at temperature 0.7."""
    every = prompts()
    for start in range(0, count, STREAMS):
        listener = Listener()
        core = EngineCore(runner, tokenizer, WITH_VECTORS, drafter=listener)
        assert core._steps.speculator is not None
        core._steps.speculator.lengths = EachStep()
        for i in range(start, min(start + STREAMS, count)):
            config = GenerationConfig(temperature=0.7 * (i % 2), seed=i, max_tokens=length)
            ids = tokenizer.encode(every[i % len(every)], special=True)
            core.add_request(Request(str(i), [TokenData(ids)], config))
        while not core.is_idle:
            core.step()
        yield listener.answers()
