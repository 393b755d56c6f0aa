"""The tokenizer and the chat template of a model folder without tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from mlc_llm.model_files.folder_texts import folder_template
from mlc_llm.testing.byte_tokenizer import (
    CHAT_TEMPLATE,
    CONTROL_TOKENS,
    END_OF_TEXT,
    IM_END,
    byte_tokenizer_metadata,
)
from mlc_llm.tokenizers import Tokenizer


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_vocab_json_and_merges_txt_give_the_ids_of_the_gguf_file(tmp_path: Path) -> None:
    metadata = byte_tokenizer_metadata()
    tokens = cast("list[str]", metadata["tokenizer.ggml.tokens"])
    merges = cast("list[str]", metadata["tokenizer.ggml.merges"])
    added = {
        str(END_OF_TEXT + i): {"content": text, "special": True}
        for i, text in enumerate(CONTROL_TOKENS)
    }
    config = {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": added}
    files = {
        "vocab.json": {token: i for i, token in enumerate(tokens[:END_OF_TEXT])},
        "merges.txt": "\n".join(merges),
        "tokenizer_config.json": config,
        "special_tokens_map.json": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    }
    made = Tokenizer(write(tmp_path, files))
    other = Tokenizer.from_gguf_metadata(metadata)
    for text in ("the rain in Spain", "<|im_start|>user\nhé<|im_end|>", ""):
        assert made.encode(text) == other.encode(text)
        assert made.encode(text, special=True) == other.encode(text, special=True)
    assert made.special_tokens == other.special_tokens
    assert made.eos_token_ids == other.eos_token_ids >= {IM_END}
    assert (made.bos_token_id, made.add_bos) == (other.bos_token_id, other.add_bos)


@pytest.mark.parametrize("place", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("token", ["<bos>", {"content": "<bos>"}])
def test_the_template_knows_the_texts_of_tokens(place: str, token: object, tmp_path: Path) -> None:
    assert folder_template(tmp_path) is None
    write(tmp_path, {place: {"bos_token": token}, "chat_template.jinja": CHAT_TEMPLATE})
    template = folder_template(tmp_path)
    assert template is not None
    assert (template.source, template.bos, template.eos) == (CHAT_TEMPLATE, "<bos>", "")


def test_the_template_knows_all_tokens_with_a_name(tmp_path: Path) -> None:
    config = {
        "pad_token": "<pad>",
        "unk_token": {"content": "<unk>"},
        "sep_token": None,
        "add_bos_token": True,
        "extra_special_tokens": {"image_token": "<image>"},
    }
    names = ["pad_token", "unk_token", "sep_token", "cls_token", "image_token", "add_bos_token"]
    source = "".join(f"[{{{{ {name} }}}}]" for name in names)
    more = {"cls_token": "<cls>", "pad_token": "<other>"}
    files = {"tokenizer_config.json": config, "special_tokens_map.json": more}
    template = folder_template(write(tmp_path, {**files, "chat_template.jinja": source}))
    assert template is not None
    assert template.render([]) == "[<pad>][<unk>][][<cls>][<image>][]"
    assert template.render([], variables={"pad_token": "given"}).startswith("[given]")
    template.close()


def test_the_messages_stand_above_a_token_of_their_name(tmp_path: Path) -> None:
    config = {"extra_special_tokens": {"messages": "<m>", "tools": "<t>"}}
    source = "{{ messages[0].content }}{{ tools }}"
    files = {"tokenizer_config.json": config, "chat_template.jinja": source}
    template = folder_template(write(tmp_path, files))
    assert template is not None
    assert template.render([{"role": "user", "content": "hi"}]) == "hiNone"
    template.close()
