"""The chat template of a model folder, and ids of tokens as its JSON files have them.

Formats: `tokenizer_config.json`, `chat_template.jinja` and `chat_template.json` of Transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import ModelFileError
from mlc_llm.json_file import read_json_object
from mlc_llm.tokenizers.folder_config import FolderConfig

if TYPE_CHECKING:
    from mlc_llm.protocol.json_value import JsonValue

MAX_BYTES = 16 << 20
MAX_TEMPLATE_BYTES = 1 << 20
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TEMPLATE_JSON = "chat_template.json"


def folder_template(folder: Path) -> ChatTemplate | None:
    """The template in its own file, else in tokenizer_config.json, else in chat_template.json.

    Raises ModelFileError.
    """
    config = read_json_object(folder / TOKENIZER_CONFIG, MAX_BYTES, may_be_missing=True)
    source = _template_file(folder / TEMPLATE) or _stated(folder / TOKENIZER_CONFIG, config)
    if source is None:
        path = folder / TEMPLATE_JSON
        source = _stated(path, read_json_object(path, MAX_BYTES, may_be_missing=True))
    if source is None:
        return None
    named = FolderConfig.read(folder).named
    return ChatTemplate(source, bos=named("bos_token") or "", eos=named("eos_token") or "")


def token_ids(value: JsonValue | object) -> frozenset[int]:
    """The ids in a field that is a number or a list of numbers; none for anything else."""
    ids = value if isinstance(value, list) else [value]
    return frozenset(one for one in ids if type(one) is int)


def _template_file(path: Path) -> str | None:
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise ModelFileError(f"{path}: larger than {MAX_TEMPLATE_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except ModelFileError:  # a ValueError too
        raise
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: {error}") from None


def _stated(path: Path, values: dict[str, JsonValue]) -> str | None:
    """`chat_template`: a text, or a list of named texts, one of which is "default"."""
    found = values.get("chat_template")
    if isinstance(found, list):
        named = [one for one in found if isinstance(one, dict) and one.get("name") == "default"]
        found = named[0].get("template") if named else None
    if found is not None and not isinstance(found, str):
        raise ModelFileError(f"{path}: chat_template should be a text or a list of named texts")
    return found
