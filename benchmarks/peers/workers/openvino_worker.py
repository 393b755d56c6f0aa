"""Runs in OpenVINO's environment: `openvino_worker.py MODEL THREADS serve|once`.

serve: answers measurements given as lines of JSON (see `base.LineWorker`). once: one token behind
a 16-token prompt.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai

VOCABULARY = 30_000


class Pipeline:
    """Requests of token ids, stepped here so that prompts and decoding can be timed apart."""

    def __init__(self, model: str, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_batched_tokens = 8192
        scheduler.max_num_seqs = 64
        scheduler.enable_prefix_caching = False
        options = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options)
        self._requests = 0

    def add(self, depth: int, tokens: int) -> Any:
        """A greedy request that only its length ends, with a prompt like no other."""
        self._requests += 1
        config = openvino_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True)
        config.do_sample = False
        ids = (np.arange(depth) * 7919 + 1000 + 31 * self._requests) % VOCABULARY
        tensor = openvino.Tensor(ids.astype(np.int64)[None])
        return self._pipeline.add_request(self._requests, tensor, config)

    def finish(self) -> float:
        """Seconds until nothing is left to do."""
        start = time.perf_counter()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return time.perf_counter() - start

    def measure(self, depth: int, tokens: int, streams: int) -> float:
        """Tokens a second (see `base.Trial`)."""
        handles = [self.add(depth, tokens + 1) for _ in range(streams)]
        if not tokens:
            return depth * streams / self.finish()
        while not all(handle.can_read() for handle in handles):
            self._pipeline.step()
        made = sum(len(o.generated_ids) for h in handles for o in h.read().values())
        left = streams * (tokens + 1) - made
        return left / self.finish()


def answer(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    depth, tokens, streams = (request[key] for key in ("depth", "tokens", "streams"))
    try:
        # The first run of a shape compiles it.
        pipeline.measure(depth, min(tokens, 2), streams)
        return {"value": pipeline.measure(depth, tokens, streams)}
    except RuntimeError as error:
        return {"error": str(error)[:300]}


def main() -> None:
    model, threads, mode = sys.argv[1:]
    pipeline = Pipeline(model, int(threads))
    if mode == "once":
        pipeline.add(16, 1)
        pipeline.finish()
        return
    for line in sys.stdin:
        print(json.dumps(answer(pipeline, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
