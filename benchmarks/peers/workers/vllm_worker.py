"""Runs in vLLM's environment: `vllm_worker.py FOLDER serve|once` (see `answering.work`)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from answering import prompt, work
from vllm import LLM, SamplingParams


def open_model(folder: str) -> LLM:
    # Its own processes would import modules of the folder that we are in: `kernels` of benchmarks/.
    os.environ["PYTHONSAFEPATH"] = "1"
    return LLM(
        folder,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=4096,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        enable_prefix_caching=False,
    )


class Engine:
    """Requests of token ids. The steps run here, so that prompts and decoding are timed apart."""

    def __init__(self, folder: str) -> None:
        self._engine = open_model(folder).llm_engine
        self._requests = 0

    def add(self, depth: int, tokens: int) -> str:
        self._requests += 1
        options = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        ids = prompt(depth, self._requests)
        name = str(self._requests)
        self._engine.add_request(name, {"prompt_token_ids": ids}, options)
        return name

    def finish(self) -> float:
        start = time.perf_counter()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - start

    def decode(self, requests: Sequence[str], tokens: int) -> float:
        made: dict[str, int] = {}
        while len(made) < len(requests):
            for output in self._engine.step():
                made[output.request_id] = len(output.outputs[0].token_ids)
        left = len(requests) * (tokens + 1) - sum(made.values())
        return left / self.finish()


if __name__ == "__main__":
    work(Engine(sys.argv[1]), sys.argv[2])
