"""What the parsers of `parser_targets.py` read without an error, by the name of the target."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "loader"), str(TESTS / "tokenizers")]
from gguf_bytes import array, small  # noqa: E402
from spm_bytes import START, model  # noqa: E402
from test_folder_kinds import ranks  # noqa: E402
from test_tekken_file import tekken  # noqa: E402
from tiny_folders import tokenizer_files  # noqa: E402

from mlc_llm.serve.openai.tools.families import RULES  # noqa: E402


def gguf_with_words() -> bytes:
    file = small()
    tokens = [*"abcdefgh", "Ġ", "Ġa", "<s>"]
    file.keys[4] = ("tokenizer.ggml.tokens", array("str", tokens))
    file.keys[5] = ("tokenizer.ggml.token_type", array("i32", [1] * 10 + [3]))
    for key, text in (("model", "gpt2"), ("pre", "default")):
        kind = b"\x08\0\0\0" + len(text).to_bytes(8, "little") + text.encode()
        file.keys.append((f"tokenizer.ggml.{key}", kind))
    file.keys.append(("tokenizer.ggml.merges", array("str", ["Ġ a"])))
    return file.build()


def safetensors(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


TENSOR = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
CHAT = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "logit_bias": {"5": 1}, "stop": ["x"], "n": 2, "seed": 3, "temperature": 0.5,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
}  # fmt: skip
PROMPTS = {"prompt": [[1], [2]], "stop": "🌙", "echo": True}
ANTHROPIC = {
    "max_tokens": 5, "system": [{"type": "text", "text": "a"}], "tool_choice": {"type": "any"},
    "tools": [{"name": "f", "input_schema": {"type": "object"}}], "thinking": {"type": "disabled"},
    "messages": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "b"}]},
    ],
}  # fmt: skip
RESPONSES = {
    "instructions": "a", "text": {"format": {"type": "json_object"}},
    "reasoning": {"effort": "low"},
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "b"},
    ],
}  # fmt: skip
OLLAMA = {
    "messages": [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "a", "tool_name": "f"},
    ],
    "options": {"num_ctx": 9, "num_predict": 3, "stop": ["a"]}, "format": "json",
    "think": True, "keep_alive": "5m",
}  # fmt: skip
RAW = {"prompt": "a", "raw": True, "options": {"seed": 1}, "format": {"type": "object"}}
SCHEMA = {
    "properties": {"a": {"enum": [1, "b"]}, "c": {"$ref": "#/$defs/d"}}, "required": ["a"],
    "$defs": {"d": {"items": {"anyOf": [{"type": "string", "pattern": "a+"}, {"const": 1}]}}},
}  # fmt: skip
PARAM = {"name": "a", "shape": [2, 2], "dtype": "float32", "format": "raw", "byteOffset": 0}
SHARD = {"dataPath": "params_shard_0.bin", "format": "raw-shard", "nbytes": 16}
INDEX = {"records": [{**SHARD, "records": [{**PARAM, "nbytes": 16}]}]}
IMATRIX = struct.pack("<2is2i4f2i", 1, 1, b"a", 2, 4, 1, 2, 3, 4, 1, 0)
"""The matrix "a" with four columns, seen two times."""
REQUESTS = (CHAT, PROMPTS, ANTHROPIC, RESPONSES, OLLAMA, RAW)
CALL = [("get_weather", '{"city": "Rome", "days": 2}')]


def seeds() -> dict[str, list[bytes]]:
    answers = [bytes([i, 3]) + one.written(CALL).encode() for i, (_, one) in enumerate(RULES)]
    return {
        "gguf": [small().build(), gguf_with_words()],
        "safetensors": [safetensors({"a": TENSOR, "__metadata__": {"b": "c"}}, bytes(16))],
        "tokenizer.json": [tokenizer_files()["tokenizer.json"].encode()],
        "tokenizer.model": [model([*START, ("▁", -9.0, 1), ("a", -9.0, 1), ("▁a", -1.0, 1)])],
        "tekken.json": [json.dumps(tekken()).encode()],
        "qwen.tiktoken": [ranks(b"he", b"llo").encode()],
        "vocab.txt": ["[UNK]\n[CLS]\n[SEP]\n[PAD]\na\nb\n##c\n1\né\n".encode()],
        "tensor-cache.json": [json.dumps(INDEX).encode()],
        "imatrix": [IMATRIX],
        "request": [json.dumps(one).encode() for one in REQUESTS],
        "schema": [json.dumps(SCHEMA).encode()],
        "answer": answers,
    }
