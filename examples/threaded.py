"""The engine on threads of its own: requests are queued, and a callback gets what is new."""

import json
import threading

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import RequestStreamOutput, TextData
from mlc_llm.serve.threaded_engine import ThreadedEngine
from mlc_llm.tokenizers import TextStreamer

ended = threading.Event()


def show(outputs: list[RequestStreamOutput]) -> None:
    """Runs on the stream-back thread; the engine does not wait for it."""
    for output in outputs:
        _, sequences = output.unpack()
        for sequence in sequences:
            print(streamer.put(sequence.delta_token_ids), end="", flush=True)
            if sequence.request_final_usage_json_str is not None:
                ended.set()


engine = ThreadedEngine.Create()
engine.init_threaded_engine("auto", show)
loops = [
    threading.Thread(target=engine.run_background_loop),
    threading.Thread(target=engine.run_background_stream_back_loop),
]
for loop in loops:
    loop.start()
try:
    engine.reload(json.dumps({"model": None}))  # the default model; or a .gguf file
    streamer = TextStreamer(engine.get_model_bundle().tokenizer)
    config = GenerationConfig(max_tokens=32, temperature=0)
    engine.add_request(engine.create_request("story", TextData("Once upon a time"), config))
    ended.wait()
finally:
    engine.exit_background_loop()
    for loop in loops:
        loop.join()
print(streamer.finish())
