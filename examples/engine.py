"""OpenAI's API in Python: a whole answer, a streamed one, and the continuation of several texts."""

from mlc_llm import MLCEngine

with MLCEngine() as engine:  # the default model; or a .gguf file
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = engine.chat.completions.create(messages=question, max_tokens=32, temperature=0)
    print(answer.choices[0].message.content)

    question = [{"role": "user", "content": "Name three colours."}]
    for chunk in engine.chat.completions.create(
        messages=question, max_tokens=32, temperature=0, stream=True
    ):
        for choice in chunk.choices:
            print(choice.delta.content, end="", flush=True)
    print()

    texts = ["The sun rises in the", "Water boils at"]
    found = engine.completions.create(prompt=texts, max_tokens=8, temperature=0, echo=True)
    for one in found.choices:
        print(repr(one.text))
