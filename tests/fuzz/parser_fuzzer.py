"""A program that changes bytes until a parser fails with anything but one line of ours. It follows
which code of the parser runs (atheris, on libFuzzer). `test_parsers.py` gives it whole files.

    TMPDIR=/dev/shm python tests/fuzz/parser_fuzzer.py gguf SEEDS -max_total_time=3600

It leaves a folder in TMPDIR, because libFuzzer ends the process itself.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["mlc_llm"]):
    from mlc_llm.errors import MLCError
    from mlc_llm.loader.gguf import GGUFFile
    from mlc_llm.loader.safetensors_file import SafetensorsFile
    from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
    from mlc_llm.serve.anthropic import fields as anthropic
    from mlc_llm.serve.anthropic.translation import translated as of_anthropic
    from mlc_llm.serve.core.grammar.schema import check_schema
    from mlc_llm.serve.ollama import fields as ollama
    from mlc_llm.serve.ollama.translation import translated_chat, translated_prompt
    from mlc_llm.serve.openai.tools.families import RULES
    from mlc_llm.serve.openai.tools.family import Function
    from mlc_llm.serve.responses.fields import ResponsesRequest
    from mlc_llm.serve.responses.translation import translated as of_responses
    from mlc_llm.tokenizers import Tokenizer

TEXT = "a b\n 12 é 🌙 <s>"
FAMILIES = [family for _, family in RULES]
FUNCTIONS = [Function("get_weather", {"properties": {"city": {}}}, "parameters")]


def in_file(name: str, use: Callable[[Path], object]) -> Callable[[bytes], None]:
    """A parser of a file with this name."""
    places: list[Path] = []

    def parse(data: bytes) -> None:
        if not places:
            places.append(Path(tempfile.mkdtemp()) / name)
        places[0].write_bytes(data)
        use(places[0])

    return parse


def gguf(path: Path) -> None:
    file = GGUFFile.open(path)
    sum(int(one.data.sum()) for one in file.tensors.values())
    Tokenizer.from_gguf_metadata(file.metadata).encode_prompt(TEXT)


def safetensors(path: Path) -> None:
    for one in SafetensorsFile.open(path).tensors.values():
        one.data.sum()


def tokenizer(path: Path) -> None:
    made = Tokenizer(path.parent)
    made.decode(made.encode_prompt(TEXT))


REQUESTS: list[tuple[Any, Callable[[Any], Any]]] = [
    (ChatCompletionRequest, lambda body: body),
    (CompletionRequest, lambda body: body),
    (anthropic.MessagesRequest, lambda body: of_anthropic(body, "m").request),
    (anthropic.CountTokensRequest, lambda body: of_anthropic(body, "m").request),
    (ResponsesRequest, lambda body: of_responses(body, "m").request),
    (ollama.ChatRequest, lambda body: body.messages and translated_chat(body, "m", 9).request),
    (ollama.GenerateRequest, lambda body: body.prompt and translated_prompt(body, "m", 9).request),
]
"""Kinds of requests, and the chat or completion that each becomes, if it asks for anything."""


def request(data: bytes) -> None:
    for kind, translated in REQUESTS:
        try:
            body = kind.parse_text(data)
            body.unknown_fields()
            if found := translated(body):
                found.generation_config().validate_ranges()
        except MLCError as error:
            check(error)


def schema(data: bytes) -> None:
    check_schema(data.decode("utf-8", "replace"), "schema")


def answer(data: bytes) -> None:
    """The text of a model, in pieces. The first bytes choose the form and the pieces."""
    if len(data) < 2:
        return
    reader = FAMILIES[data[0] % len(FAMILIES)].reader(FUNCTIONS)
    text, size, said = data[2:].decode("utf-8", "replace"), data[1] % 16 + 1, 0
    for start in range(0, len(text), size):
        said += len(reader.put(text[start : start + size]).text)
    said += len(reader.finish(is_cut=bool(data[1] & 16)).text)
    assert said <= len(text), "more text comes out than went in"


TARGETS = {
    "gguf": in_file("model.gguf", gguf),
    "safetensors": in_file("model.safetensors", safetensors),
    "tokenizer.json": in_file("tokenizer.json", tokenizer),
    "tokenizer.model": in_file("tokenizer.model", tokenizer),
    "tekken.json": in_file("tekken.json", tokenizer),
    "request": request,
    "schema": schema,
    "answer": answer,
}


def check(error: MLCError) -> None:
    if "\n" in str(error):
        raise AssertionError(f"more than one line: {error}")


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        try:
            target(data)
        except MLCError as error:
            check(error)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
