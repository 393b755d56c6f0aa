"""Twenty chats at once in a program with an event loop, and one that is given up."""

import asyncio

from mlc_llm import AsyncMLCEngine


async def ask(engine: AsyncMLCEngine, question: str) -> str:
    """The whole answer. Cancelling the task would end the request."""
    messages = [{"role": "user", "content": question}]
    answer = await engine.chat.completions.create(messages=messages, max_tokens=16, temperature=0)
    return str(answer.choices[0].message.content)


async def first_words(engine: AsyncMLCEngine, question: str) -> str:
    """A streamed answer, of which 20 characters are enough."""
    messages, text = [{"role": "user", "content": question}], ""
    chunks = await engine.chat.completions.create(messages=messages, stream=True)
    async with chunks:  # the request ends here
        async for chunk in chunks:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            if len(text) >= 20:
                break
    return text


async def main() -> None:
    async with AsyncMLCEngine() as engine:  # the default model; or a .gguf file
        questions = [f"What is {i} plus {i}?" for i in range(20)]
        for answer in await asyncio.gather(*(ask(engine, one) for one in questions)):
            print("answer:", answer)
        print("begins:", await first_words(engine, "Tell me a very long story."))


asyncio.run(main())
