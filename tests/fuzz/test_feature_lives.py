"""Random requests with adapters, salts, images, scores of prompts and embeddings, mixed in one
engine that is short of everything, give what each gives alone.

`test_alone_and_mixed.py` has their other wishes. The fake runner's logits depend here on the
adapter of each token in the pages, too, and on whether it may have been computed less exactly.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from eager_drafts import draft_always
from test_alone_and_mixed import (
    MOST_SEQUENCES,
    ROOM,
    TOKENIZER,
    Answer,
    Asked,
    Engine,
    compare,
    mixed,
    some_request,
)

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import NO_ADAPTER, BatchRow, Sampled
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.core.speculation.draft_model import DraftModel
from mlc_llm.serve.data import Data, ImageData, RequestStreamOutput, TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.byte_tokenizer import IM_END
from mlc_llm.testing.fake_runner import FakeRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve_core"))

from test_core_images import TOKENS as IMAGE_TOKENS
from test_core_images import Reader, picture
from test_state_scheduling import StateRunner

pytestmark = pytest.mark.slow
ADAPTERS = {"one": 1, "two": 2}


class _Telling(FakeRunner):
    """Its pages say how each token was computed."""

    def _run_row(self, row: BatchRow) -> list[Sampled]:
        number = 0 if row.adapter == NO_ADAPTER else int(next(iter(self.adapters[row.adapter])))
        fast = row.prompt_tokens if self.limits.precision == "fast-prompts" else 0
        pairs = enumerate(row.token_ids)
        told = [zlib.crc32(f"{t} {number} {i < fast}".encode()) >> 1 for i, t in pairs]
        return super()._run_row(replace(row, token_ids=told))


class _TellingStates(_Telling, StateRunner):
    pass


@dataclass
class Life:
    """What an engine is short of, and what its model has."""

    limits: dict[str, Any]
    config: EngineConfig
    has_states: bool
    precision: Any
    drafts: bool

    def engine(self, changes: random.Random | None, **limits: Any) -> _Engine:
        """changes: decides which adapters it has in each step; None: always all."""
        config = self.config if changes else EngineConfig(prefix_cache_max_num_recycling_seqs=0)
        kind = _TellingStates if self.has_states else _Telling
        runner = kind(**{**self.limits, **limits})
        runner.limits = replace(runner.limits, precision=self.precision)
        shared = ("num_pages", "page_size", "max_num_sequence")
        drafter = DraftModel(FakeRunner(**{one: self.limits[one] for one in shared}))
        core = EngineCore(
            runner,
            TOKENIZER,
            config,
            stop_token_ids=[IM_END],
            drafter=drafter if self.drafts and changes else None,
            images=Reader() if runner.limits.whole_images else None,  # type: ignore[arg-type]
        )
        draft_always(core, 6)
        engine = _Engine(core, changes=changes)
        for name in ADAPTERS if runner.limits.adapters.slots else ():
            engine.load(name)
        return engine


@dataclass
class _Wanted(Asked):
    inputs: list[Data] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    """Other fields of the request."""


@dataclass
class _Engine(Engine):
    changes: random.Random | None = None
    numbers: dict[str, list[Any]] = field(default_factory=dict)
    """Embeddings and scores of prompts."""

    def add(self, asked: Asked, **more: Any) -> None:
        assert isinstance(asked, _Wanted)
        config = GenerationConfig(**{**asked.config, **more})
        lists = ([[] for _ in range(config.n)] for _ in range(2))
        self.answers[asked.name] = Answer(*lists, [None] * config.n, [0] * config.n)
        self.numbers[asked.name] = []
        try:
            self.take(
                self.core.add_request(Request(asked.name, asked.inputs, config, **asked.more))
            )
        except InvalidField as error:
            assert "there is no such adapter" in str(error)
            del self.answers[asked.name]

    def take(self, outputs: Sequence[RequestStreamOutput]) -> None:
        for one in outputs:
            if one.prompt_logprob_json_strs is not None:
                self.numbers[one.request_id].append(one.prompt_logprob_json_strs)
            if one.embedding is not None:
                self.numbers[one.request_id].append(one.embedding)
        super().take(outputs)

    def step(self) -> None:
        if self.changes is not None and self.core.adapters.names and self.changes.random() < 0.2:
            name = self.changes.choice(self.core.adapters.names)
            self.core.adapters.drop(name)
            self.load(name)
        super().step()

    def load(self, name: str) -> None:
        try:
            self.core.adapters.load(name, {str(ADAPTERS[name]): ()})
        except InvalidField as error:
            assert "drop one" in str(error)


def some_life(rng: random.Random) -> Life:
    has_states, reads_images = rng.choice([(True, False), (False, True), (False, False)])
    page_size = rng.choice([4, 16])
    fewest = -(-(ROOM + 2 * IMAGE_TOKENS * reads_images) // page_size) + 1
    most = rng.randint(2, 6)
    limits = {
        "page_size": page_size,
        "num_pages": rng.randint(fewest, 2 * fewest),
        "max_num_sequence": most,
        "max_batch_tokens": rng.choice([6, 16, 33]) + IMAGE_TOKENS * reads_images,
        "adapters": 0 if reads_images else 2,
        "whole_images": reads_images,
    }
    config = EngineConfig(
        prefill_mode=rng.choice(["hybrid", "chunked"]),
        prefix_cache_max_num_recycling_seqs=rng.choice([None, 0, 1]),
    )
    precision = rng.choice(["exact", "fast-prompts"])
    return Life(limits, config, has_states, precision, drafts=rng.random() < 0.5)


def some_wanted(rng: random.Random, index: int, life: Life) -> _Wanted:
    asked = some_request(rng, index)
    wanted = _Wanted(**vars(asked), inputs=[TokenData(asked.prompt)])
    wanted.more["cache_salt"] = rng.choice(["", "", "a salt"])
    if life.limits["adapters"]:
        wanted.more["adapter"] = rng.choice(["", *ADAPTERS])
    if life.limits["whole_images"] and rng.random() < 0.6:
        at = rng.randint(1, len(asked.prompt))
        images = [ImageData(picture(rng.randint(1, 3))) for _ in range(rng.randint(1, 2))]
        behind = [TokenData(asked.prompt[at:])] if asked.prompt[at:] else []
        wanted.inputs = [TokenData(asked.prompt[:at]), *images, *behind]
    elif rng.random() < 0.3:
        wanted.more["prompt_logprobs"] = rng.randrange(3)
    elif rng.random() < 0.2:
        wanted.more["is_embedding"] = True
        wanted.config = {"max_tokens": 1, "seed": index, "logprobs": False}
    return wanted


@pytest.mark.parametrize("seed", range(60))
def test_lives_of_many_features(seed: int) -> None:
    rng = random.Random(seed)
    life = some_life(rng)
    requests = [some_wanted(rng, i, life) for i in range(14)]
    engine = life.engine(rng)
    answers = mixed(engine, requests)
    limits = {"num_pages": 256, "max_num_sequence": MOST_SEQUENCES, "max_batch_tokens": 64}
    plenty = life.engine(None, **limits)
    for one in requests:
        if one.name not in answers:  # its adapter was not there
            continue
        plenty.take(plenty.core.reset())
        plenty.add(one, logprobs=not one.more.get("is_embedding"))
        while not plenty.core.is_idle:
            plenty.step()
        what, found = f"seed {seed}: {one} of {life}", answers[one.name]
        compare(found, plenty.answers[one.name], reported=one.config["logprobs"], what=what)
        if "abort" not in found.reasons or engine.numbers[one.name]:
            assert engine.numbers[one.name] == plenty.numbers[one.name], what
    engine.take(engine.core.reset())
    engine.core.check_integrity()
    adapters = engine.core.adapters
    assert len(adapters._free) + len(adapters.names) == life.limits["adapters"], "a slot is lost"
