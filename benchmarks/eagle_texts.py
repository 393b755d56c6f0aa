"""What an EAGLE head learns from: the model's answers, with the vectors of its layers.

Two files: `NAME.json` lists the texts, `NAME.f16` has the vectors of all their tokens, one text
behind the other. No prompt is one of `prompts.json`, with which heads are tried.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from common import read_json
from head_texts import CONFIG, CONTEXT, END
from tap_recorder import Recorded, Recorder, open_recorder
from user_questions import Draft, learnt, unseen

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.request import Request
from mlc_llm.tokenizers import Tokenizer

STREAMS = 64
PORTION = 4 * STREAMS
"""Questions."""
HELD_BACK = STREAMS
"""Greedy texts that are not learnt from, the first of the list."""
QUESTION = 56
"""Tokens, at most."""
ASKING = 0.8
"""Temperature of questions."""
SAMPLED, WARM = 3, 0.7
"""One of SAMPLED answers is drawn at the temperature WARM, the others are greedy."""
Halves = npt.NDArray[np.float16]
Wanted = tuple[list[int], float, int]
"""Tokens, temperature, and how many more at most."""


class Text(NamedTuple):
    """Tokens of a question and its answer, and where their vectors lie."""

    tokens: list[int]
    first: int
    """The first token of the answer."""
    at: int
    """Row of the vectors."""


class Texts(NamedTuple):
    """All of a folder's texts."""

    known: list[Text]
    vectors: Halves
    """[tokens, taps * hidden], in a file."""


class Writer:
    """Writes texts as they end."""

    def __init__(self, model: Path, taps: Sequence[int], path: Path) -> None:
        """path: without the endings of its two files."""
        self._path, self._known, self._rows = path, list[Text](), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._vectors = path.with_suffix(".f16").open("wb")
        self._listens = False
        config = replace(
            CONFIG,
            max_num_sequence=STREAMS,
            max_total_sequence_length=STREAMS * CONTEXT,
            prefill_chunk_size=1024,
            precision="fast",
        )
        self._config, self._taps = config, taps
        self._runner = open_recorder(model, taps, config, "fast", self._hear)
        self._tokenizer = open_model(str(model)).tokenizer

    @property
    def tokens(self) -> int:
        """Written so far."""
        return self._rows

    def write(self, count: int, length: int) -> Iterator[int]:
        """Ask HELD_BACK questions about what the others are not about, then so many others, with
        answers of at most `length` tokens, in portions. The numbers of texts so far."""
        self._answer([(one, 0.0) for one in unseen(HELD_BACK)], length, seed=0)
        yield len(self._known)
        seen = dict.fromkeys(read_json("prompts.json")["chat"])
        drafts = learnt(np.random.default_rng(0))
        for turn in itertools.count(1):
            asked = self._questions([*itertools.islice(drafts, PORTION)], seed=turn)
            fresh = [one for one in dict.fromkeys(asked) if one not in seen]
            fresh = fresh[: count + HELD_BACK - len(self._known)]
            seen |= dict.fromkeys(fresh)
            warm = [(one, 0.0 if i % SAMPLED else WARM) for i, one in enumerate(fresh)]
            self._answer(warm, length, seed=turn)
            yield len(self._known)
            if len(self._known) >= count + HELD_BACK:
                self._vectors.close()
                return

    def _answer(self, asked: Sequence[tuple[str, float]], length: int, *, seed: int) -> None:
        """Questions, each with a temperature."""
        wanted = []
        for one, temperature in asked:
            chat = f"<|im_start|>user\n{one}{END}\n<|im_start|>assistant\n"
            wanted.append((self._tokenizer.encode(chat, special=True), temperature, length))
        self._listens = True
        for _ in run_all(self._runner, self._tokenizer, self._config, wanted, seed=seed):
            pass
        self._listens = False
        self._save()

    def _questions(self, drafts: Sequence[Draft], *, seed: int) -> list[str]:
        """Those that are whole, and others as the model ends them: what it expects of a user. (To
        begin a chat and let the model write on is the method of Magpie, Xu et al. 2024.)"""
        texts = [one.text for one in drafts]
        begun = [i for i, one in enumerate(drafts) if not one.is_whole]
        encode = self._tokenizer.encode
        starts = [encode(f"<|im_start|>user\n{texts[i]}", special=True) for i in begun]
        wanted = [(one, ASKING, QUESTION) for one in starts]
        stops = encode(END, special=True)
        found = run_all(self._runner, self._tokenizer, self._config, wanted, seed=seed, stops=stops)
        for i, ids in found:
            more = self._tokenizer.decode(ids).replace(END, "")
            if len(ids) == QUESTION:  # cut: up to the end of a sentence
                more = more[: 1 + max(more.rfind(mark) for mark in ".?!")]
            texts[begun[i]] = (texts[begun[i]] + more).strip() if more else ""
        return [one for one in texts if len(one) > 8]

    def _hear(self, one: Recorded) -> None:
        if self._listens:
            self._known.append(Text(one.tokens, one.first, self._rows))
            self._vectors.write(one.vectors.tobytes())
            self._rows += len(one.tokens)

    def _save(self) -> None:
        self._vectors.flush()
        listed = {"taps": [*self._taps], "texts": self._known}
        self._path.with_suffix(".json").write_text(json.dumps(listed))


def run_all(
    runner: Recorder,
    tokenizer: Tokenizer,
    config: EngineConfig,
    wanted: Sequence[Wanted],
    *,
    seed: int,
    stops: Sequence[int] = (),
) -> Iterator[tuple[int, list[int]]]:
    """The answers as they end, each with its number. So many run at a time as there is room for."""
    core = EngineCore(runner, tokenizer, config, stop_token_ids=stops)
    waiting, found = enumerate(wanted), dict[str, list[int]]()
    while True:
        for i, (ids, temperature, most) in itertools.islice(waiting, STREAMS - len(found)):
            number = seed * len(wanted) + i
            settings = GenerationConfig(temperature=temperature, seed=number, max_tokens=most)
            core.add_request(Request(str(i), [TokenData(ids)], settings))
            found[str(i)] = []
        if core.is_idle:
            return
        for output in core.step():
            if output.request_id not in found:  # only numbers about one that has ended
                continue
            (one,) = output.unpack()[1]
            found[output.request_id] += one.delta_token_ids
            if one.finish_reason is not None:
                yield int(output.request_id), found.pop(output.request_id)


def read_texts(path: Path, taps: Sequence[int], width: int) -> Texts:
    """What a `Writer` has written. width: numbers of a token's vectors."""
    listed = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    if listed["taps"] != [*taps]:
        raise SystemExit(f"{path}.json has vectors of layers {listed['taps']}, not of {[*taps]}")
    known = [Text(*one) for one in listed["texts"]]
    numbers = np.memmap(path.with_suffix(".f16"), np.float16, mode="r")
    return Texts(known, numbers[: len(numbers) // width * width].reshape(-1, width))


def make_texts(model: Path, taps: Sequence[int], path: Path, count: int, length: int) -> None:
    """Write new ones, and say how it goes on."""
    start, writer = time.process_time(), Writer(model, taps, path)
    for done in writer.write(count, length):
        seconds = time.process_time() - start
        print(f"{done} texts, {writer.tokens} tokens, {seconds:.0f} s of processors", flush=True)
