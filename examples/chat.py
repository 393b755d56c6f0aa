"""A chat with memory: the conversation is a list of messages, which goes to the model whole."""

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine

engine = SyncMLCEngine(model=None, mode="interactive")  # the default model; or a .gguf file
config = GenerationConfig(temperature=0, max_tokens=60)
messages = [{"role": "system", "content": "You answer questions in one short sentence."}]
for question in (
    "What is the capital of France?",
    "Which river flows through it?",
    "What can I visit there?",
):
    messages.append({"role": "user", "content": question})
    answer = engine.chat(messages, config)
    messages.append(answer.message)  # without this line, the next answer knows nothing of it
    end = "" if answer.finish_reason == "stop" else " [cut by max_tokens]"
    print(f"> {question}\n{answer.text}{end}")
    # What was said before is in the prefix cache, so that only the new tokens are computed.
    usage = answer.usage
    print(f"  ({usage.prompt_tokens} prompt tokens, {usage.cached_tokens} of them cached)")
