"""The calls of MLC LLM's own test of recurrent models, `test_serve_engine_rnn.py`, with a tiny
random RWKV-7."""

from __future__ import annotations

from pathlib import Path

from rwkv7_reference import write_model

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import EngineConfig, MLCEngine

PROMPTS = [
    "What is the meaning of life?",
    "Introduce the history of Pittsburgh to me. Please elaborate in detail.",
    "Do you know AlphaGo? What capabilities does it have?",
]


def test_engine_generate(tmp_path: Path) -> None:
    engine = MLCEngine(
        model=str(write_model(tmp_path / "model.gguf")),
        mode="server",
        engine_config=EngineConfig(max_num_sequence=8, max_history_size=1, kernels="reference"),
    )
    asked = GenerationConfig(max_tokens=16, n=7, debug_config={"ignore_eos": True})  # type: ignore[arg-type]
    seen: list[list[str]] = []
    for number, prompt in enumerate(PROMPTS):
        texts = [""] * asked.n
        for outputs in engine._generate(prompt, asked, request_id=str(number)):
            if outputs[0].request_final_usage_json_str is not None:
                continue
            assert len(outputs) == asked.n
            for i, output in enumerate(outputs):
                texts[i] += output.delta_text
        assert all(texts)
        assert len(set(texts)) > 1, "the answers of a prompt are drawn apart"
        seen.append(texts)
    engine.terminate()
    assert len({*map(tuple, seen)}) == len(PROMPTS)
