"""What tests of heads that draft run in processes where the stand-in is CUDA."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
from eager_drafts import draft_always
from fake_cuda import Fake
from model_programs import PROMPTS, engine

from mlc_llm.runtime.batch import Sampling
from mlc_llm.runtime.medusa_runner import MedusaRunner
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.opening import open_engine

ASKED = (
    {"max_tokens": 12, "temperature": 0.0},
    {"max_tokens": 6, "temperature": 0.9, "seed": 3, "n": 2},
)


def drafts(library: str, weights: str, hidden: str) -> None:
    """Prints, of each head, the likeliest tokens behind hidden vectors, and their log-probability:
    of all together, and of each alone."""
    runner, vectors = MedusaRunner(Path(library), Path(weights)), np.load(hidden).tolist()
    greedy, found = Sampling(temperature=0.0, top_logprobs=0), []
    for head in range(runner.count):
        together = runner.sample(head, vectors, [greedy] * len(vectors))
        alone = [runner.sample(head, [one], [greedy])[0] for one in vectors]
        assert together == alone, "a row depends on others"
        found.append([(one.token_id, one.logprob) for one in together])
    print(json.dumps(found))


def medusa_texts(model: str, library: str, heads: str, heads_library: str) -> None:
    """Prints what an engine writes without heads and with them, how many tokens these have drafted
    and how many were right, and what is alive at the end."""
    plain = engine(model, library, "cuda")
    wanted = [plain.generate(PROMPTS, asked)[0] for asked in ASKED]
    del plain
    made = drafting_engine(model, library, heads, heads_library)
    found = [made.generate(PROMPTS, asked)[0] for asked in ASKED]
    counts = made.metrics().metrics["spec_decode"]
    numbers = [sum(counts["draft_count"]), sum(counts["accept_count"])]
    del made
    gc.collect()
    print(json.dumps([wanted, found, numbers, Fake().alive()]))


def eagle_opened(model: str, head: str, root: str) -> None:
    """Compiles what `eagle_texts` needs: a head has a library with the model. root: of what tests
    keep."""
    import kept
    from emulated_models import emulated_into

    from mlc_llm.compiler import build

    kept._state["root"] = Path(root)
    build.build_library = emulated_into
    eager_engine(model, None, speculative_mode="eagle", additional_models=[head])


def eagle_texts(model: str, library: str, head: str) -> None:
    """The same as `medusa_texts`, with an EAGLE head."""
    plain = engine(model, library, "cuda")
    wanted = [plain.generate(PROMPTS, asked)[0] for asked in ASKED]
    del plain
    made = eager_engine(model, None, speculative_mode="eagle", additional_models=[head])
    found = [made.generate(PROMPTS, asked)[0] for asked in ASKED]
    counts = made.metrics().metrics["spec_decode"]
    numbers = [sum(counts["draft_count"]), sum(counts["accept_count"])]
    del made
    gc.collect()
    print(json.dumps([wanted, found, numbers, Fake().alive()]))


def drafting_engine(model: str, library: str, heads: str, heads_library: str) -> Any:
    """An engine with Medusa heads that drafts in every step it can."""
    more = [(heads, heads_library)]
    return eager_engine(model, library, speculative_mode="medusa", additional_models=more)


def eager_engine(model: str, library: str | None, **settings: Any) -> Any:
    """An engine that drafts in every step it can."""

    class Eager(EngineCore):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            draft_always(self, 3)

    open_engine.EngineCore = Eager  # type: ignore[misc]
    return engine(model, library, "cuda", **settings)
