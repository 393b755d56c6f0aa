"""Show an answer as it comes: the caller steps the engine, a callback gets what is new."""

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import RequestStreamOutput, TextData
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.tokenizers import TextStreamer

finished: list[str] = []


def show(outputs: list[RequestStreamOutput]) -> None:
    """Print the new text. The usage of a request is the last thing that comes."""
    for output in outputs:
        request_id, sequences = output.unpack()
        for sequence in sequences:
            print(streamer.put(sequence.delta_token_ids), end="", flush=True)
            if sequence.request_final_usage_json_str is not None:
                finished.append(request_id)


engine = SyncMLCEngine(model=None, request_stream_callback=show)
streamer = TextStreamer(engine.tokenizer)
prompt = [TextData("Once upon a time")]
config = GenerationConfig(max_tokens=32, temperature=0)
engine.add_request(engine.create_request("story", prompt, config))
while not finished:
    engine.step()
print(streamer.finish())
