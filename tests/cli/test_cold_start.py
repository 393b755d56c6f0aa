"""What a cold start imports: by names, since times differ from machine to machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("default_model")]

NOT_NEEDED = {
    "asyncio", "difflib", "email", "http", "importlib.metadata", "random", "secrets", "socket",
    "ssl", "tempfile", "unittest", "zipfile",
    "h11", "huggingface_hub", "jinja2", "llguidance", "ml_dtypes", "numpy", "prompt_toolkit",
    "pydantic", "rich", "safetensors", "starlette", "torch", "tvm", "uvicorn",
    "mlc_llm.conversation_template.rendering",
    "mlc_llm.conversion",
    "mlc_llm.kernels",
    "mlc_llm.model_files.huggingface", "mlc_llm.model_files.tensor_views",
    "mlc_llm.protocol.conversation_protocol", "mlc_llm.protocol.openai_api_protocol",
    "mlc_llm.quantization.block_format",
    "mlc_llm.serve.core.speculation.draft_model",
    "mlc_llm.serve.openai.tools", "mlc_llm.serve.server", "mlc_llm.serve.threaded_engine",
    "mlc_llm.support.log_thread",
}  # fmt: skip
"""Packages and modules that one answer of the default model needs nothing of."""
OF_CHATS = {"mlc_llm.images", "mlc_llm.serve.openai"}
"""What a prompt without the chat template needs nothing of, besides."""
ARCHITECTURES = {"gemma3", "gpt_oss", "phi3", "qwen3", "text_part"}
GENERATE = """
import sys
from mlc_llm.cli.__main__ import main
code = main(["generate", "Hi", "--temperature", "0", "--max-tokens", "4", "--quiet"])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(("more", "also"), [("", set()), (', "--raw"', OF_CHATS)])
def test_generate_imports_only_what_the_answer_needs(more: str, also: set[str]) -> None:
    code = GENERATE.replace("])", f"{more}])")
    for _ in range(2):  # the first run may fill the cache, and needs the compiler for that
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert done.stdout.strip()
    loaded = done.stderr.splitlines()[-1].split()
    assert "mlc_llm.runtime.model_runner" in loaded
    names = NOT_NEEDED | also
    wrong = {one for one in loaded if any(one == no or one.startswith(f"{no}.") for no in names)}
    assert wrong == set()
    assert not {f"mlc_llm.models.{one}" for one in ARCHITECTURES} & set(loaded)


def test_a_short_prompt_needs_no_merge_table() -> None:
    code = GENERATE.replace(
        "\ncode =",
        "\nimport mlc_llm.tokenizers.from_gguf as made\n"
        "made._backends = None  # cannot be called\ncode =",
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
