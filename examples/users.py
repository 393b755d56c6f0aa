"""Twenty users at once, each on a thread of its own, served by one engine."""

import queue
import threading

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import RequestStreamOutput, SingleRequestStreamOutput, TextData
from mlc_llm.serve.stream import SequenceText
from mlc_llm.serve.threaded_engine import ThreadedEngine

Inbox = queue.Queue[SingleRequestStreamOutput]
inboxes: dict[str, Inbox] = {f"user-{i}": Inbox() for i in range(20)}
answers: dict[str, str] = {}


def deliver(outputs: list[RequestStreamOutput]) -> None:
    """Runs on the stream-back thread: it only hands on, so that nobody waits for anybody."""
    for output in outputs:
        request_id, sequences = output.unpack()
        for sequence in sequences:
            inboxes[request_id].put(sequence)


def ask(user: str) -> None:
    """One user: asks, reads until the usage comes, which is the last thing of each request."""
    prompt = TextData(f"A short letter to number {user[5:]}:")
    engine.add_request(engine.create_request(user, prompt, GenerationConfig(max_tokens=24)))
    text = SequenceText(tokenizer)
    while (output := inboxes[user].get()).request_final_usage_json_str is None:
        text.put(output)
    answers[user] = f"({text.finish_reason}) {''.join(text.pieces)!r}"


engine = ThreadedEngine.Create()
engine.init_threaded_engine("auto", deliver)
bodies = (engine.run_background_loop, engine.run_background_stream_back_loop)
loops = [threading.Thread(target=body) for body in bodies]
for loop in loops:
    loop.start()
try:
    # With mode="local", four answers run at a time and the other users wait.
    engine.reload(EngineConfig(mode="server").asjson())  # model=None: the default model
    tokenizer = engine.get_model_bundle().tokenizer
    users = [threading.Thread(target=ask, args=(user,)) for user in inboxes]
    for thread in users:
        thread.start()
    for thread in users:
        thread.join()
finally:
    engine.exit_background_loop()
    for loop in loops:
        loop.join()
for user, answer in answers.items():
    print(user, answer)
