"""What tests of models with adapters, draft heads or pages of bytes run in processes where the
stand-in is CUDA. Nothing here imports the compiler."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from model_programs import TOKENS, runner_of

from mlc_llm.model_files.adapters import changes_of, open_adapter, parts_of
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.runtime.batch import NO_ADAPTER, Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.limits import AdapterLimits
from mlc_llm.runtime.model_runner import ModelRunner

LIMITS = AdapterLimits(3, 16)
WATCH = Sampling(temperature=0, top_logprobs=20)


def same_logits(runner: ModelRunner, tokens: list[int], **settings: Any) -> Any:
    """The same bits in steps of any size."""
    found = [runner.logits(tokens, chunk=chunk, **settings) for chunk in (64, 7)]
    assert found[0].tobytes() == found[1].tobytes(), "the size of a step matters"
    return found[0]


def check_company(runner: ModelRunner, owners: tuple[int, ...]) -> None:
    """Rows of any adapters give the same in one step and each alone, in prompts and behind them."""
    prompts = [TOKENS[:20], TOKENS[30:31], TOKENS[:20], TOKENS[7:17]][: len(owners)]

    def stories(groups: list[list[int]]) -> dict[int, list[Sampled]]:
        runner.reset()
        found: dict[int, list[Sampled]] = {i: [] for i in range(len(owners))}
        for group in groups:
            for i in group:
                runner.add_sequence(i)
            for step in range(3):
                tokens = [prompts[i] if step == 0 else [5 + i] for i in group]
                rows = [
                    BatchRow(i, one, [WATCH], adapter=owners[i])
                    for i, one in zip(group, tokens, strict=True)
                ]
                for i, (sample,) in zip(group, runner.run(Batch(rows)).samples, strict=True):
                    found[i].append(sample)
        return found

    together = [*range(len(owners))]
    assert stories([together]) == stories([[i] for i in together])


def adapted(library: str, weights: str, model: str, adapters: str, out: str) -> None:
    """Saves the logits of 60 of `TOKENS` with each adapter, and without one."""
    runner, files = runner_of(library, weights, adapters=LIMITS), GGUFModel.open(model)
    paths = json.loads(adapters)
    for slot, path in enumerate(paths):
        runner.load_adapter(slot, parts_of(files.plan(), changes_of(files, open_adapter(path))))
    slots = [*range(len(paths)), NO_ADAPTER]
    np.save(out, [same_logits(runner, TOKENS[:60], adapter=slot) for slot in slots])
    check_company(runner, (0, 1, NO_ADAPTER, 1))


def of_bytes(library: str, weights: str, out: str) -> None:
    """Saves the logits of `TOKENS` with pages of bytes."""
    runner = runner_of(library, weights, kv_cache="int8")
    np.save(out, same_logits(runner, TOKENS))
    check_company(runner, (NO_ADAPTER,) * 4)
    runner.check_integrity()


def drafted(library: str, weights: str, text: str, count: int) -> None:
    """Prints the chains that an EAGLE head drafts behind a text: its tokens, each with the most
    likely ones. It does not matter which steps have computed the text, and what was forgotten."""
    runner, tokens = runner_of(library, weights), json.loads(text)
    runner.add_sequence(0)
    runner.run(Batch([BatchRow(0, tokens[:-1], [])]))
    whole = chain(runner, 0, tokens[-1], count)
    runner.add_sequence(1)
    for start, end in ((0, 17), (17, 18), (18, 43), (43, 44)):
        runner.run(Batch([BatchRow(1, tokens[start:end], [])]))
        chain(runner, 1, 5, 2)
    assert chain(runner, 1, tokens[-1], count) == whole
    runner.fork_sequence(1, 2, 37)
    runner.run(Batch([BatchRow(2, [*tokens[37:44], 1, 2, 3], [WATCH])]))
    runner.rollback_sequence(2, 3)
    assert chain(runner, 2, tokens[-1], count) == whole
    both = Batch([BatchRow(i, [tokens[-1]], [WATCH]) for i in (0, 1)])
    assert [one for (one,) in runner.draft(both).samples] == [whole[0], whole[0]]
    print(json.dumps([[one.token_id, one.top] for one in whole]))


def chain(runner: ModelRunner, seq_id: int, last: int, count: int) -> list[Sampled]:
    """Behind a sequence, which is as before afterwards."""
    found: list[Sampled] = []
    for _ in range(count):
        token = found[-1].token_id if found else last
        ((one,),) = runner.draft(Batch([BatchRow(seq_id, [token], [WATCH])])).samples
        found.append(one)
    runner.rollback_sequence(seq_id, count)
    runner.check_integrity()
    return found
