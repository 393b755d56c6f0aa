"""Runs in OpenVINO's environment: `openvino_worker.py MODEL THREADS serve|once` (see
`answering.work`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy as np
import openvino
import openvino_genai
from answering import prompt, work


class Pipeline:
    """Requests of token ids. The steps run here, so that prompts and decoding are timed apart."""

    def __init__(self, model: str, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_batched_tokens = 8192
        scheduler.max_num_seqs = 64
        scheduler.enable_prefix_caching = False
        options = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options)
        self._requests = 0

    def add(self, depth: int, tokens: int) -> openvino_genai.GenerationHandle:
        self._requests += 1
        config = openvino_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True)
        config.do_sample = False
        ids = np.array([prompt(depth, self._requests)], np.int64)
        return self._pipeline.add_request(self._requests, openvino.Tensor(ids), config)

    def finish(self) -> float:
        start = time.perf_counter()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return time.perf_counter() - start

    def decode(self, requests: Sequence[openvino_genai.GenerationHandle], tokens: int) -> float:
        while not all(request.can_read() for request in requests):
            self._pipeline.step()
        made = sum(len(o.generated_ids) for r in requests for o in r.read().values())
        left = len(requests) * (tokens + 1) - made
        return left / self.finish()


if __name__ == "__main__":
    work(Pipeline(sys.argv[1], int(sys.argv[2])), sys.argv[3])
