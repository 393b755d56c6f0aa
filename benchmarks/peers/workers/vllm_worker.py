"""Runs in vLLM's environment: `vllm_worker.py FOLDER serve|once` (see `openvino_worker.py`)."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from vllm import LLM, SamplingParams

VOCABULARY = 30_000


class Engine:
    """Requests of token ids, stepped here so that prompts and decoding can be timed apart."""

    def __init__(self, folder: str) -> None:
        self._engine: Any = LLM(
            folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=4096,
            max_num_seqs=64,
            max_num_batched_tokens=4096,
            enable_prefix_caching=False,
        ).llm_engine
        self._requests = 0

    def add(self, depth: int, tokens: int) -> None:
        self._requests += 1
        options = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        ids = [(7919 * i + 1000 + 31 * self._requests) % VOCABULARY for i in range(depth)]
        self._engine.add_request(str(self._requests), {"prompt_token_ids": ids}, options)

    def finish(self) -> float:
        """Seconds until nothing is left to do."""
        start = time.perf_counter()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - start

    def measure(self, depth: int, tokens: int, streams: int) -> float:
        """Tokens a second (see `base.Trial`)."""
        for _ in range(streams):
            self.add(depth, tokens + 1)
        if not tokens:
            return depth * streams / self.finish()
        made: dict[str, int] = {}
        while len(made) < streams:
            for output in self._engine.step():
                made[output.request_id] = len(output.outputs[0].token_ids)
        left = streams * (tokens + 1) - sum(made.values())
        return left / self.finish()


def answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    depth, tokens, streams = (request[key] for key in ("depth", "tokens", "streams"))
    try:
        engine.measure(depth, min(tokens, 2), streams)
        return {"value": engine.measure(depth, tokens, streams)}
    except (RuntimeError, ValueError) as error:
        return {"error": str(error)[:300]}


def main() -> None:
    folder, mode = sys.argv[1:]
    engine = Engine(folder)
    if mode == "once":
        engine.add(16, 1)
        engine.finish()
        return
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
