"""Our engine without the server, for `server.py cost`: it reads work as JSON lines and answers.

A line is {"prompts": [token ids], "answer": tokens}. The reply is {"seconds", "processor_s"} from
the first `add_request` to the last usage.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from served import overrides

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import Data, RequestStreamOutput, TokenData
from mlc_llm.serve.threaded.loops import LoopThreads
from mlc_llm.serve.threaded_engine import ThreadedEngine

LOOPS = ("run_background_loop", "run_background_stream_back_loop", "exit_background_loop")


class Bare:
    """A `ThreadedEngine` whose outputs nobody reads."""

    def __init__(self, model: str, places: int) -> None:
        self._engine = ThreadedEngine.Create()
        self._left, self._ended = 0, threading.Event()
        self._engine.init_threaded_engine("auto", self._take)
        self._loops = LoopThreads({name: getattr(self._engine, name) for name in LOOPS})
        given = (item.split("=") for item in overrides(places).split(";"))
        fields = {name: int(value) for name, value in given}
        config = EngineConfig(model=model, mode="server", verbose=False, **fields)  # type: ignore[arg-type]
        self._engine.reload(config.asjson())
        self._number = 0

    def _take(self, outputs: list[RequestStreamOutput]) -> None:
        self._left -= sum(one.request_final_usage_json_str is not None for one in outputs)
        if self._left == 0:
            self._ended.set()

    def run(self, prompts: list[list[int]], answer: int) -> dict[str, float]:
        """All prompts at once."""
        config = GenerationConfig(
            temperature=0.0,
            max_tokens=answer,
            debug_config={"ignore_eos": True},
        )
        self._ended.clear()
        self._left = len(prompts)
        processor, started = time.process_time(), time.perf_counter()
        for ids in prompts:
            self._number += 1
            data: list[Data] = [TokenData(ids)]
            self._engine.add_request(self._engine.create_request(f"r{self._number}", data, config))
        self._ended.wait()
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "processor_s": time.process_time() - processor}

    def close(self) -> None:
        self._loops.terminate()


def main() -> None:
    bare = Bare(sys.argv[1], int(sys.argv[2]))
    print("{}", flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        print(json.dumps(bare.run(work["prompts"], work["answer"])), flush=True)
    bare.close()


if __name__ == "__main__":
    main()
