"""What tests run in processes where the stand-in is CUDA, with libraries for its emulator. Nothing
here imports the compiler."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fake_cuda import Fake

from mlc_llm.backends.cuda import driver
from mlc_llm.backends.cuda.graphs import CudaGraphs
from mlc_llm.errors import MLCError
from mlc_llm.precision import Precision
from mlc_llm.runtime.batch import Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.model_runner import ModelRunner

TOKENS = np.random.default_rng(0).integers(0, 300, 90).tolist()
CHUNKS = (64, 7, 1)
PROMPTS = [
    "Why is the sky blue?",
    "Hello",
    "Why is the sky blue? And why is the sea green, if not for the same reason?",
    "Why is the sky blue? Say it in one word.",
]
driver.LEAST_FREE = 0


def runner_of(
    library: str,
    weights: str,
    window: Window | None = None,
    precision: Precision = "exact",
    **more: Any,
) -> ModelRunner:
    """For up to 4 sequences and 64 tokens a step."""
    return ModelRunner(
        Path(library), Path(weights), window=window, precision=precision,
        num_pages=24, max_num_sequence=4, max_batch_tokens=64, context_window=512,
        **more,
    )  # fmt: skip


def windowed(library: str, weights: str, size: int, sinks: int, out: str) -> None:
    """Saves the logits of `window_tokens` with a sliding window of an engine, which are the same
    bits in steps of two sizes, and prints what it writes behind `TOKENS`, a token a step, and how
    many pages the text has then."""
    runner = runner_of(library, weights, Window(size, sinks))
    tokens = window_tokens(sinks)
    found = [runner.logits(tokens, chunk=chunk) for chunk in (64, 9)]
    assert found[0].tobytes() == found[1].tobytes(), "the size of a step matters"
    np.save(out, found[0])
    print(json.dumps([written(runner), runner.limits.num_pages - runner.free_pages]))


def window_tokens(sinks: int) -> list[int]:
    """With sinks so many that the last ones see them from nearer than they are."""
    return TOKENS * 2 if sinks else TOKENS


def written(runner: ModelRunner, count: int = 20) -> list[int]:
    """The most likely tokens behind `TOKENS`, which leave `runner` with one sequence."""
    greedy, found = [Sampling(temperature=0.0)], []
    runner.add_sequence(0)
    runner.run(Batch([BatchRow(0, TOKENS[:50], ())]))
    tokens = TOKENS[50:]
    for _ in range(count):
        ((chosen,),) = runner.run(Batch([BatchRow(0, tokens, greedy)])).samples
        tokens = [chosen.token_id]
        found.append(chosen.token_id)
    return found


def logits(library: str, weights: str, out: str) -> None:
    """Saves the logits of `TOKENS`, which are the same bits in steps of any size."""
    runner = runner_of(library, weights)
    found = [runner.logits(TOKENS, chunk=chunk) for chunk in CHUNKS]
    assert all(one.tobytes() == found[0].tobytes() for one in found), "the size of a step matters"
    runner.check_integrity()
    assert runner.free_pages == runner.limits.num_pages
    np.save(out, found[0])


def rounded_logits(library: str, weights: str, out: str, precision: Precision) -> None:
    """Saves the logits of 48 of `TOKENS`: the first 37 are a prompt, and the others an answer. They
    are the same bits in steps of other sizes."""
    runner = runner_of(library, weights, precision=precision)
    found = [runner.logits(TOKENS[:48], chunk=chunk, prompt_tokens=37) for chunk in (48, 17)]
    assert all(one.tobytes() == found[0].tobytes() for one in found), "the size of a step matters"
    np.save(out, found[0])


def rows(library: str, weights: str, precision: Precision = "exact") -> None:
    """What a row gives is the same, bit for bit, alone and beside others, forked and computed."""
    runner = runner_of(library, weights, precision=precision)
    vocab = runner.limits.vocab_size
    mask = np.packbits(np.arange(-(-vocab // 32) * 32) % 3 > 0, bitorder="little").tobytes()
    plain = Sampling(temperature=0.8, top_p=0.9, uniform=0.3, top_logprobs=5, wants_hidden=True)
    changes: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0, "allowed": mask},
        {"top_k": 7, "uniform": 0.99, "logit_bias": {5: 3.0}, "presence_penalty": 0.5},
        {"min_p": 0.05, "repetition_penalty": 1.2, "frequency_penalty": 0.1},
    ]
    lengths, alone, together = (5, 1, 30, 17), [], []
    batch = []
    for i, (length, change) in enumerate(zip(lengths, changes, strict=True)):
        one = replace(plain, token_counts={3: 1, 9: 2}, **change)
        batch.append(BatchRow(i, TOKENS[i : i + length], [one]))
    for row in batch:
        alone += run(runner, row)
        runner.remove_sequence(row.seq_id)
    together = run(runner, *batch)
    assert alone == together
    assert all(one.error is None and len(one.top) == 5 for one in together)
    assert together[1].token_id % 3 > 0, "the mask forbids it"
    check_fork(runner, plain)


def check_fork(runner: ModelRunner, plain: Sampling) -> None:
    """A fork goes on as the whole sequence does, also from the middle of a page."""
    runner.remove_sequence(0)
    runner.fork_sequence(2, 0, 21)
    forked = run(runner, BatchRow(0, TOKENS[:9], [plain]), add=False)
    for seq_id in range(4):
        runner.remove_sequence(seq_id)
    whole = run(runner, BatchRow(0, TOKENS[2:23] + TOKENS[:9], [plain]))
    assert forked == whole
    runner.remove_sequence(0)
    runner.check_integrity()
    assert runner.free_pages == runner.limits.num_pages


def run(runner: ModelRunner, *rows: BatchRow, add: bool = True) -> list[Sampled]:
    """One step with sequences that begin with it."""
    for row in rows if add else ():
        runner.add_sequence(row.seq_id)
    return [one for samples in runner.run(Batch(rows)).samples for one in samples]


def engine(model: str, library: str | None, device: str, **settings: object) -> Any:
    """A `SyncMLCEngine`."""
    from mlc_llm.serve.config import EngineConfig
    from mlc_llm.serve.sync_engine import SyncMLCEngine

    return SyncMLCEngine(model, device, model_lib=library, engine_config=EngineConfig(**settings))


def texts(model: str, library: str | None, device: str, kernels: str | None) -> list[object]:
    """What an engine writes: one after the other, so that later prompts find the beginnings of
    earlier ones in the prefix cache; together; and with prompts in parts of 16 tokens."""
    made = engine(model, library, device, kernels=kernels)
    greedy = {"max_tokens": 12, "temperature": 0.0}
    alone = [made.generate(prompt, greedy)[0] for prompt in PROMPTS]
    assert made.metrics()["prefix_cache"]["hits_sum"] >= 2
    made.reset()
    together = made.generate(PROMPTS, greedy)[0]
    check_drawn(made)
    del made
    parts = engine(model, library, device, kernels=kernels, prefill_chunk_size=16)
    return [*alone, together, parts.generate(PROMPTS, greedy)[0]]


def window_texts(model: str, library: str | None, device: str, kernels: str | None) -> list[object]:
    """What an engine with a window and sinks writes, behind a prompt that is longer than both: one
    after the other; together; and with prompts in parts of 16 tokens."""
    window = {"sliding_window_size": 24, "attention_sink_size": 4, "max_num_sequence": 4}
    made = engine(model, library, device, kernels=kernels, **window)
    prompts, greedy = [PROMPTS[2] * 3, *PROMPTS[:2]], {"max_tokens": 12, "temperature": 0.0}
    alone = [made.generate([prompt], greedy)[0][0][0] for prompt in prompts]
    made.reset()
    together = [one for (one,) in made.generate(prompts, greedy)[0]]
    del made
    parts = engine(model, library, device, kernels=kernels, prefill_chunk_size=16, **window)
    return [alone, together, [one for (one,) in parts.generate(prompts, greedy)[0]]]


def print_window_texts(model: str, library: str | None, device: str) -> None:
    print(json.dumps(window_texts(model, library, device, None)))


def check_drawn(made: Any) -> None:
    """The same seed gives the same texts, alone and beside other prompts."""
    drawn = {"max_tokens": 10, "n": 3, "seed": 7, "temperature": 0.9, "top_p": 0.95}
    alone = made.generate(PROMPTS[2], drawn)[0]
    assert len({*alone[0]}) == 3, "each of them has random numbers of its own"
    other = {"max_tokens": 20, "seed": 8, "temperature": 1.0}
    assert made.generate([PROMPTS[1], PROMPTS[2]], [other, drawn])[0][1] == alone[0]


def print_texts(model: str, library: str | None, device: str) -> None:
    """Prints them, and what is alive on the GPU when nothing refers to the engines any more."""
    found = texts(model, library, device, None)
    gc.collect()
    print(json.dumps([found, Fake().alive()]))


def fail_calls_of_an_engine(model: str, library: str, loses: int, every: int) -> None:
    """Each call of CUDA in two requests fails once, in a process of its own. loses: all later calls
    fail too, as after an illegal access. Prints what `failing_requests` does."""
    made = engine(model, library, "cuda")
    wanted = answers(made)
    gc.disable()  # what is given back must not wait for it
    for _ in range(2):  # the first time takes memory that is kept
        forget_graphs()
        before = Fake().calls()
        assert answers(made) == wanted
        total = Fake().calls() - before
    forget_graphs()  # each process makes its own
    for number in range(1, total + 1, every):
        in_a_fork(lambda number=number: failing_requests(made, wanted, number, loses))


def forget_graphs() -> None:
    """As though no step had been repeated yet."""
    for one in gc.get_objects():
        if isinstance(one, CudaGraphs):
            one._entries.clear()


def answers(made: Any) -> list[str]:
    """Two requests at a time, which find nothing in the prefix cache."""
    made.reset()
    texts = made.generate(PROMPTS[:2], {"max_tokens": 6, "temperature": 0.0})[0]
    return [text for (text,) in texts]


def two_engines(model: str, library: str) -> None:
    """Two engines answer at the same time, each on a thread of its own; then one of them is closed,
    and the other one goes on. Prints what they write, how often steps were repeated, and what is
    alive at the end."""
    fake, found = Fake(), {}
    engines = {name: engine(model, library, "cuda") for name in ("first", "second")}

    def answer(name: str) -> None:
        found[name] = [answers(engines[name]) for _ in range(2)]

    threads = [threading.Thread(target=answer, args=(name,)) for name in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del engines["first"]
    gc.collect()
    fake.log()
    found["alone"] = [answers(engines["second"])]
    repeated = sum(line.startswith("cudaGraphLaunch") for line in fake.log())
    engines.clear()
    gc.collect()
    print(json.dumps([found, repeated, fake.alive()]))


def failing_requests(made: Any, wanted: list[str], number: int, loses: int) -> None:
    """Prints the function that failed, and the error, if a request had one. Checks that the engine
    goes on with the next requests if the GPU does."""
    fake, error = Fake(), None
    with fake.failing(number, 700):
        fake.lose(number if loses else 0)
        try:
            assert answers(made) == wanted
        except MLCError as caught:
            error = f"{type(caught).__name__}: {caught}"
        failed = fake.failed()
        if loses:
            print(json.dumps([failed, error]), flush=True)
            return
    assert answers(made) == wanted
    print(json.dumps([failed, error]), flush=True)


def fail_calls_of_opening(model: str, library: str, every: int) -> None:
    """The same for each call while an engine is opened. Prints the function, the error, and what is
    alive when the engine is gone."""
    opened_once(model, library)
    gc.collect()
    before = Fake().calls()
    opened_once(model, library)
    for number in range(1, Fake().calls() - before + 1, every):
        in_a_fork(lambda number=number: failing_opening(model, library, number))


def opened_once(model: str, library: str) -> None:
    engine(model, library, "cuda")


def failing_opening(model: str, library: str, number: int) -> None:
    fake, error = Fake(), None
    with fake.failing(number, 700):
        try:
            opened_once(model, library)
        except (MLCError, MemoryError) as caught:
            error = f"{type(caught).__name__}: {caught}"
        gc.collect()
        failed = fake.failed()
    print(json.dumps([failed, error, fake.alive()]), flush=True)


def in_a_fork(work: Callable[[], None]) -> None:
    """Does it in a process of its own, which must end well within a minute."""
    if not (child := os.fork()):
        signal.alarm(60)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert not status, f"status {status}"


def too_little_memory(model: str, library: str) -> None:
    """Prints what is said where the GPU has no room for the model."""
    try:
        engine(model, library, "cuda", max_total_sequence_length=1 << 20)
    except MLCError as error:
        print(error)
    print(json.dumps(Fake().alive()))
