"""Parsers of what others write, by name. Each takes bytes, and reads them or raises an error of
ours in one line."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mlc_llm.conversion.importance import read_importance
from mlc_llm.errors import MLCError
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.mlc_shards import MLCShards
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


def shards(path: Path) -> None:
    """The index of a folder whose one shard, params_shard_0.bin, has 16 bytes."""
    (path.parent / "params_shard_0.bin").write_bytes(bytes(16))
    found = MLCShards.open(path.parent)
    found.check_sums()
    for one in found.params.values():
        one.data.sum()


def importance(path: Path) -> None:
    plan: Any = SimpleNamespace(matrices={"m": [SimpleNamespace(tensor="a", shape=(2, 4))]})
    read_importance(path, plan)


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
    "qwen.tiktoken": in_file("qwen.tiktoken", tokenizer),
    "vocab.txt": in_file("vocab.txt", tokenizer),
    "tensor-cache.json": in_file("tensor-cache.json", shards),
    "imatrix": in_file("imatrix.dat", importance),
    "request": request,
    "schema": schema,
    "answer": answer,
}


def check(error: MLCError) -> None:
    if "\n" in str(error):
        raise AssertionError(f"more than one line: {error}")


def read_or_refuse(target: Callable[[bytes], None], data: bytes) -> None:
    """Raises AssertionError for an error of several lines, and whatever is no error of ours."""
    try:
        target(data)
    except MLCError as error:
        check(error)
