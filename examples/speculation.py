"""Speculative decoding: the same text in fewer steps. See whether it pays for your texts."""

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.answers import Usage
from mlc_llm.serve.sync_engine import SyncMLCEngine

LIST = "\n".join(f"{i}. The price of item {i} is {i} euros." for i in range(1, 9))
PROMPT = f"Here is the list:\n{LIST}\n\nHere is the list again:\n1."


def run(mode: str) -> tuple[str, Usage]:
    """The text and what it took, with nothing else running."""
    engine = SyncMLCEngine(
        model=None,  # the default model; or a .gguf file
        mode="interactive",
        engine_config={"speculative_mode": mode},
    )
    answer = engine.generate(PROMPT, GenerationConfig(temperature=0, max_tokens=100))
    drafts = engine.metrics().metrics.get("spec_decode")  # not there if nothing was drafted
    if drafts is not None:
        mean = [*drafts["accept_len"].values()][-1]  # the last one counts the drafts whole
        print(f"{drafts['draft_count'][0]} drafts; of each, {mean:.2f} tokens were right")
    return answer.texts[0][0], answer.usages[0]


plain, usage = run("disable")
drafted, faster = run("prompt_lookup")
print(f"plain: {usage.extra['decode_tokens_per_s']:.0f} tokens a second")
print(f"with draft tokens: {faster.extra['decode_tokens_per_s']:.0f} tokens a second")
print(f"same text: {plain == drafted}")
