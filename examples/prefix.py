"""The prefix cache: what prompts have in common at their start is computed once."""

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine

RULES = "Rule: answer politely, in one sentence, and name no prices. " * 20

engine = SyncMLCEngine(model=None)  # the default model; or a .gguf file
config = GenerationConfig(temperature=0, max_tokens=16)
for question in ("Where is the bakery?", "When does it open?"):
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": question}]
    usage = engine.chat(messages, config).usage
    computed, seconds = usage.extra["prefill_tokens"], usage.extra["ttft_s"]
    print(
        f"{question}: {usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached, ", end=""
    )
    print(f"{computed} computed, first token after {seconds:.3f} s")

found = engine.metrics()["prefix_cache"]
print(f"{found['hits_sum']} of {found['lookups_sum']} prompts began like one before")
# Where the second prompt left the first. What differs (a date, a name) belongs behind it.
print(f"the last one differed at token {found['last_divergence']['position']}")
