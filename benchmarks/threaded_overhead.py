"""The cost of threads and JSON: JSON FFI compared with the sync engine, idle CPU, wake-up time.

    python benchmarks/threaded_overhead.py [--repeat N] [--tokens N] [--streams N] [--model PATH]

Both engines are open in one process and take turns. A run is whole greedy requests, from the
messages to the last text; the results are tokens a second. Both sides render the chat template,
tokenise, schedule, compute, and make text from the tokens as they come.

* sync: the calling thread does all of it, and returns when all texts are complete.
* JSON FFI: also, each request is JSON, and each token is a chunk of JSON that crosses two threads.
  A reader thread for each stream parses and checks it as a `ChatCompletionStreamResponse`. With 32
  streams there are 32 reader threads, which take time from the model's cores.

The ratio is that of the two runs of one turn. Idle is the CPU time of ten seconds without requests.
The wake-up time is from `add_request` on a sleeping echo engine to its first step.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable

from common import Spread, model_path, print_configuration

from mlc_llm.json_ffi import JSONFFIEngine
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import Data, TokenData
from mlc_llm.serve.openai.chat import chat_prompt
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.serve.threaded.loops import LoopThreads
from mlc_llm.serve.threaded_engine import ThreadedEngine

IDLE_SECONDS = 10.0
WAKE_UPS = 200
LOOPS = ("run_background_loop", "run_background_stream_back_loop", "exit_background_loop")


def question(i: int) -> list[dict[str, str]]:
    """Messages that differ from the first word, so that the prefix cache finds nothing."""
    return [{"role": "user", "content": f"{i}. Tell a story about a lighthouse."}]


def sync_run(engine: SyncMLCEngine, streams: int, tokens: int) -> float:
    """Tokens a second of all streams together."""
    config = GenerationConfig(
        temperature=0.0,
        max_tokens=tokens,
        debug_config={"ignore_eos": True},
    )
    start = time.perf_counter()
    prompts: list[list[Data]] = [
        [
            TokenData(
                chat_prompt(
                    question(i), tokenizer=engine.tokenizer, template=engine.bundle.chat_template
                )
            )
        ]
        for i in range(streams)
    ]
    engine.generate(prompts, config)
    return streams * tokens / (time.perf_counter() - start)


def json_run(engine: JSONFFIEngine, streams: int, tokens: int) -> float:
    """The same with JSON. Each stream has its own reader thread."""

    def read(i: int) -> None:
        chunks = engine.chat.completions.create(
            messages=question(i),
            temperature=0,
            max_tokens=tokens,
            extra_body={"debug_config": {"ignore_eos": True}},
        )
        "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(streams)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return streams * tokens / (time.perf_counter() - start)


def turns(
    sync: Callable[[], float], other: Callable[[], float], repeat: int
) -> tuple[list[float], list[float]]:
    """Tokens a second of both, in turns, after one run each that is not counted."""
    sync(), other()
    results: dict[Callable[[], float], list[float]] = {sync: [], other: []}
    for i in range(repeat):
        for run in (sync, other) if i % 2 else (other, sync):
            time.sleep(0.15)  # the other engine's workers look for work for this long
            results[run].append(run())
    return results[sync], results[other]


def idle_share() -> float:
    """CPU time of the process without requests, as a share of one core."""
    time.sleep(1.0)  # TVM's workers look for work a tenth of a second before they sleep
    before = time.process_time()
    time.sleep(IDLE_SECONDS)
    return (time.process_time() - before) / IDLE_SECONDS


def wake_ups() -> list[float]:
    """Milliseconds from `add_request` on a sleeping echo engine to its first step."""
    engine = ThreadedEngine.Create()
    ended = threading.Event()
    engine.init_threaded_engine(
        "auto", lambda outs: ended.set() if outs[-1].request_final_usage_json_str else None
    )
    loops = LoopThreads({name: getattr(engine, name) for name in LOOPS})
    engine.reload(json.dumps({"model": "mock://echo"}))
    core = engine.loaded.core
    usual, steps = core.step, []

    def step() -> object:
        steps.append(time.perf_counter())
        return usual()

    core.step = step  # type: ignore[method-assign, assignment]
    waits = []
    for i in range(WAKE_UPS):
        time.sleep(0.005)
        request = engine.create_request(f"r{i}", "a", "{}")
        steps.clear()
        start = time.perf_counter()
        engine.add_request(request)
        ended.wait()
        ended.clear()
        waits.append(1000 * (steps[0] - start))
    loops.terminate()
    return waits


def report(name: str, sync: list[float], other: list[float]) -> None:
    ratios = [100 * b / a for a, b in zip(sync, other, strict=True)]
    print(f"{name:12s} sync {Spread.of(sync)}  JSON FFI {Spread.of(other)}  {Spread.of(ratios)} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model")
    parser.add_argument("--repeat", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--streams", type=int, default=32)
    arguments = parser.parse_args()
    model = str(model_path(arguments.model))
    config = EngineConfig(max_num_sequence=arguments.streams, prefix_cache_mode="disable")
    print_configuration("threads and JSON, tok/s", model=model, tokens=arguments.tokens)
    print(f"wake-up      {Spread.of(wake_ups())} ms")
    sync = SyncMLCEngine(model, mode="server", engine_config=config)
    engine = JSONFFIEngine(model, mode="server", engine_config=config)
    try:
        for streams in (1, arguments.streams):
            tokens, repeat = arguments.tokens, arguments.repeat
            results = turns(
                lambda s=streams, t=tokens: sync_run(sync, s, t),  # type: ignore[misc]
                lambda s=streams, t=tokens: json_run(engine, s, t),  # type: ignore[misc]
                repeat,
            )
            report(f"{streams} streams", *results)
        print(f"idle         {100 * idle_share():.3f} % of a core")
    finally:
        engine.terminate()


if __name__ == "__main__":
    main()
