"""Perplexity and speed of a text that is much longer than the model's context, in a sliding window.

    python benchmarks/streaming.py [--window N] [--sinks N] [--laps N] [--chunk N]

The public-domain text is read again and again as one sequence. For each lap the script prints where
it ends, its perplexity, and the milliseconds a token. If the window is shorter than the text, the
model sees the same tokens in each lap after the first, so the perplexity must not rise. `--chunk 1`
computes every token on the decode path.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import model_path, print_configuration, token_logprobs
from ours import ONE_SEQUENCE, add_engine_options, open_runner, versions

from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.limits import STREAM_LENGTH
from mlc_llm.serve.opening.bundle import open_model

HERE = Path(__file__).resolve().parent


def laps(
    runner: ModelRunner, text: Sequence[int], count: int, chunk: int
) -> Iterator[tuple[float, float]]:
    """Perplexity of each lap, and milliseconds a token of its steps."""
    ids = [*list(text) * count, text[0]]
    steps, start, known, seconds = runner.logits_by_step(ids, chunk), 0, [], 0.0
    while start + 1 < len(ids):
        began = time.perf_counter()
        logits = next(steps)
        seconds += time.perf_counter() - began
        following = ids[start + 1 : start + 1 + len(logits)]
        known += list(token_logprobs(logits[: len(following)], following))
        start += len(logits)
        if len(known) >= len(text) or start >= len(ids):
            lap = known[: len(text)]
            yield float(np.exp(-np.mean(lap))), 1e3 * seconds / len(known)
            known, seconds = known[len(text) :], 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_engine_options(parser)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--laps", type=int, default=6)
    parser.add_argument("--chunk", type=int, default=512)
    arguments = parser.parse_args()
    model = model_path(arguments.model)
    config = replace(
        ONE_SEQUENCE,
        sliding_window_size=arguments.window,
        attention_sink_size=arguments.sinks,
        max_single_sequence_length=STREAM_LENGTH,
        max_total_sequence_length=2 * (arguments.window + arguments.sinks) + 1024,
    )
    runner = open_runner(model, arguments.kernels, arguments.threads, config)
    options = {"kernels": runner.metadata.backend, "window": arguments.window}
    options |= {"sinks": arguments.sinks, "chunk": arguments.chunk}
    print_configuration("a text without end", model=model.name, **options, **versions())
    bundle = open_model(str(model))
    text = bundle.tokenizer.encode((HERE / "public_domain.txt").read_text(encoding="utf-8"))
    print(f"the model's context: {bundle.context_window} tokens; a lap: {len(text)}")
    found = laps(runner, text, arguments.laps, arguments.chunk)
    for lap, (perplexity, milliseconds) in enumerate(found, 1):
        end = lap * len(text)
        print(f"  to {end:8d}: perplexity {perplexity:8.4f}, {milliseconds:.3f} ms a token")


if __name__ == "__main__":
    main()
