"""The chat template of a model folder, and ids of tokens as its JSON files have them.

Formats: `tokenizer_config.json`, `chat_template.jinja`, `chat_template.json` and
`additional_chat_templates` of Transformers.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import ModelFileError
from mlc_llm.json_file import is_there, read_json_object
from mlc_llm.plain_file import read_plain, reason
from mlc_llm.tokenizers.folder_config import FolderConfig

if TYPE_CHECKING:
    from mlc_llm.protocol.json_value import JsonValue

MAX_BYTES = 16 << 20
MAX_TEMPLATE_BYTES = 1 << 20
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TEMPLATE_JSON = "chat_template.json"
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of templates: of the usual one, and of the one for chats with tools."""


def folder_template(folder: Path) -> ChatTemplate | None:
    """The template in its own file, else in tokenizer_config.json, else in chat_template.json.

    Raises ModelFileError.
    """
    sources = _sources(folder)
    if not sources:
        return None
    return with_tool_use(sources, FolderConfig.read(folder).token_texts())


def with_tool_use(sources: Mapping[str, str], tokens: Mapping[str, str]) -> ChatTemplate | None:
    """One template of texts with their names. Without a default one, that for tools is for all
    chats. None: there is neither. tokens: role -> text. Raises ModelFileError."""
    bos, eos = tokens.get("bos_token", ""), tokens.get("eos_token", "")
    text = sources.get(TOOL_USE)
    other = None if text is None else ChatTemplate(text, bos=bos, eos=eos, tokens=tokens)
    if DEFAULT not in sources:
        return other
    return ChatTemplate(sources[DEFAULT], bos=bos, eos=eos, tokens=tokens, tool_use=other)


def token_ids(value: JsonValue | object) -> frozenset[int]:
    """The ids in a field that is a number or a list of numbers; none for anything else."""
    ids = value if isinstance(value, list) else [value]
    return frozenset(one for one in ids if type(one) is int)


def _sources(folder: Path) -> dict[str, str]:
    """The texts of the default template and of that for tools. A file of its own for the default
    one hides what the other files say of both."""
    files = {DEFAULT: folder / TEMPLATE, TOOL_USE: folder / TOOL_TEMPLATE}
    own = {name: text for name, path in files.items() if (text := _template_file(path))}
    if DEFAULT in own:
        return own
    for path in (folder / TOKENIZER_CONFIG, folder / TEMPLATE_JSON):
        stated = _stated(path, read_json_object(path, MAX_BYTES, may_be_missing=True))
        if stated:
            return {**stated, **own}
    return own


def _template_file(path: Path) -> str | None:
    try:
        if not is_there(path):
            return None
        text = read_plain(path, MAX_TEMPLATE_BYTES).decode("utf-8")
        return io.StringIO(text, newline=None).getvalue()  # its lines end with \\n alone
    except ModelFileError:  # a ValueError too
        raise
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: {reason(error)}") from None


def _stated(path: Path, values: dict[str, JsonValue]) -> dict[str, str]:
    """`chat_template`: a text, or a list of named texts. Other names than those of the two
    templates are left out."""
    found = values.get("chat_template")
    entries = found if isinstance(found, list) else [{"name": DEFAULT, "template": found}]
    named = {}
    for one in entries:
        name, text = (one.get("name"), one.get("template")) if isinstance(one, dict) else (None, 0)
        if text is not None and not isinstance(text, str):
            raise ModelFileError(f"{path}: chat_template should be a text or a list of named texts")
        if text is not None and name in (DEFAULT, TOOL_USE):
            named[str(name)] = text
    return named
