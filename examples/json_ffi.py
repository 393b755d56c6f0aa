"""Two chats at once, streamed as OpenAI chunks, in a program without an event loop."""

import threading

from mlc_llm.json_ffi import JSONFFIEngine


def ask(question: str) -> None:
    """Print the answer when it is whole. Leaving the loop early would abort the request."""
    text = ""
    for chunk in engine.chat.completions.create(
        messages=[{"role": "user", "content": question}], max_tokens=32, temperature=0
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
    print(f"{question}\n  {text}")


engine = JSONFFIEngine(model=None)  # the default model; or a .gguf file
questions = ["What is the capital of France?", "Name three colours."]
threads = [threading.Thread(target=ask, args=(question,)) for question in questions]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
engine.terminate()
