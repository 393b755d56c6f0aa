"""The two chat templates of one model: the default one, and the one for chats with tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conversion_tools import SHAPE, convert, quiet, write_folder

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import ModelFileError
from mlc_llm.model_files.folder_texts import TOOL_TEMPLATE, folder_template
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.testing.byte_tokenizer import CONTROL_TOKENS, END_OF_TEXT
from mlc_llm.testing.tiny_model import write_tiny_model

CONFIG, JINJA = "tokenizer_config.json", "chat_template.jinja"
KEY = "tokenizer.chat_template"


def listed(**templates: object) -> str:
    entries = [{"name": name, "template": text} for name, text in templates.items()]
    return json.dumps({"chat_template": entries})


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def sources(template: ChatTemplate | None) -> tuple[str, str | None] | None:
    if template is None:
        return None
    return template.source, None if template.tool_use is None else template.tool_use.source


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({CONFIG: listed(default="d", tool_use="t", rag="r")}, ("d", "t")),
        ({CONFIG: listed(tool_use="t", rag="r")}, ("t", None)),
        ({CONFIG: listed(rag="r")}, None),
        ({JINJA: "own", TOOL_TEMPLATE: "t"}, ("own", "t")),
        ({JINJA: "own", CONFIG: listed(default="d", tool_use="t")}, ("own", None)),
        ({CONFIG: '{"chat_template": "d"}', TOOL_TEMPLATE: "t"}, ("d", "t")),
        ({TOOL_TEMPLATE: "t"}, ("t", None)),
        ({"chat_template.json": listed(default="d", tool_use="t")}, ("d", "t")),
    ],
)
def test_both_are_found(
    files: dict[str, str], found: tuple[str, str | None] | None, tmp_path: Path
) -> None:
    assert sources(folder_template(write(tmp_path, files))) == found


def test_a_wrong_one_is_named(tmp_path: Path) -> None:
    write(tmp_path, {CONFIG: listed(default="d", tool_use=3)})
    with pytest.raises(ModelFileError, match="should be a text or a list of named texts"):
        folder_template(tmp_path)


def gguf(path: Path, **templates: str) -> GGUFModel:
    keys: dict[str, Any] = {KEY + name: text for name, text in templates.items()}
    keys["tokenizer.ggml.padding_token_id"] = END_OF_TEXT
    return GGUFModel.open(write_tiny_model(path, kinds={"": "F32"}, shape=SHAPE, metadata=keys))


def test_a_gguf_file_may_have_both(tmp_path: Path) -> None:
    model = gguf(tmp_path / "model.gguf", **{"": "d", ".tool_use": "t"})
    template = model.chat_template(model.tokenizer())
    assert sources(template) == ("d", "t")
    assert template is not None and template.tool_use is not None
    assert template.tool_use.eos == template.eos != ""
    assert template.tool_use.tokens["pad_token"] == CONTROL_TOKENS[0]


def test_conversions_keep_both(tmp_path: Path) -> None:
    model = gguf(tmp_path / "model.gguf", **{"": "d", ".tool_use": "t"})
    convert(model, "q0f16", tmp_path / "mlc")
    assert sources(folder_template(tmp_path / "mlc")) == ("d", "t")
    stated = json.loads((tmp_path / "mlc" / "mlc-chat-config.json").read_text())
    folder = write_folder(model.path, tmp_path / "folder", stated["model_config"])
    made = convert_weight(HuggingFaceModel.open(folder), "f32", tmp_path / "new.gguf", quiet)
    again = GGUFModel.open(made.path)
    assert sources(again.chat_template(again.tokenizer())) == ("d", "t")


def test_a_file_of_the_other_one_is_copied(tmp_path: Path) -> None:
    model = gguf(tmp_path / "model.gguf")
    convert(model, "q0f16", tmp_path / "first")
    stated = json.loads((tmp_path / "first" / "mlc-chat-config.json").read_text())
    folder = write_folder(model.path, tmp_path / "folder", stated["model_config"])
    write(folder, {JINJA: "d", TOOL_TEMPLATE: "t"})
    convert_weight(HuggingFaceModel.open(folder), "q0f16", tmp_path / "out", quiet)
    assert sources(folder_template(tmp_path / "out")) == ("d", "t")
