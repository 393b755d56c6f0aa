"""What the JSON files beside a vocabulary say of special and added tokens.

tokenizer_config.json comes before special_tokens_map.json, and both before added_tokens.json. All
of them are Transformers' formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from mlc_llm.errors import ModelFileError
from mlc_llm.json_file import is_there, read_json_object
from mlc_llm.record import record
from mlc_llm.tokenizers.parts import Strip
from mlc_llm.tokenizers.vocabulary import MAX_TOKENS, TokenKind

MAX_BYTES = 256 * 2**20
_MOST_MISSING = 1 << 16
"""Ids between the vocabulary and an added token that nothing names."""
_CONFIG = "tokenizer_config.json"
_ADDED = "added_tokens.json"
_MODULES = "modules.json"
_SENTENCES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""What sentence-transformers says of a model's texts: the first of these that is there."""

JsonObject = dict[str, object]
"""An object of a JSON file."""


class AddedToken(NamedTuple):
    """A token that was added to a vocabulary, or that has a meaning of its own in it."""

    id: int
    text: str
    is_special: bool
    strip: Strip
    is_word: bool = False
    """It is found in no longer word."""


@record()
class FolderConfig:
    """The values of the JSON files of a folder."""

    folder: Path
    values: JsonObject
    """tokenizer_config.json, with what only special_tokens_map.json has."""
    model: JsonObject
    """config.json."""
    added: dict[int, AddedToken]
    end_ids: frozenset[int] = field(default_factory=frozenset)
    """`eos_token_id` of generation_config.json. They may lie outside the vocabulary."""
    lowercases: bool = False
    """Texts lose their capitals first, as sentence-transformers says."""

    @classmethod
    def read(cls, folder: Path) -> FolderConfig:
        """Files that are missing say nothing. Raises ModelFileError, which names the file."""
        config = _json(folder, _CONFIG)
        values = {**_json(folder, "special_tokens_map.json"), **config}
        added = {one.id: one for one in _added_by_text(folder)}
        added |= {one.id: one for one in _added_by_id(folder, config)}
        specials = {name_of(value) for value in _specials(values)}
        for one in list(added.values()):
            if one.text in specials:
                added[one.id] = one._replace(is_special=True)
        stated = _json(folder, "generation_config.json").get("eos_token_id", [])
        ids = stated if isinstance(stated, list) else [stated]
        ends = frozenset(one for one in ids if type(one) is int)
        return cls(folder, values, _json(folder, "config.json"), added, ends, _lowercases(folder))

    def named(self, role: str) -> str | None:
        """The text of a special token: `bos_token`, `eos_token`, `unk_token`, ..."""
        return name_of(self.values.get(role))

    def token_texts(self) -> dict[str, str]:
        """All special tokens that have a name: role -> text."""
        more = self.values.get("extra_special_tokens")  # a list has no names
        named = {name: one for name, one in self.values.items() if name.endswith("_token")}
        given = {**named, **(more if isinstance(more, dict) else {})}
        return {name: text for name, one in given.items() if (text := name_of(one)) is not None}

    def flag(self, name: str) -> bool | None:
        """A true or false value; None if there is none. Raises ModelFileError."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise ModelFileError(
                f"{self.folder / _CONFIG}: {name} = {str(value)[:40]!r} should be true or false"
            )
        return value

    def text(self, name: str) -> str:
        """A text; empty if there is none."""
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def completed(self, tokens: list[str], kinds: list[int], file: str) -> None:
        """Put the added tokens into a vocabulary of the file `file`: over its own, or behind them.
        An id that nothing names gets a token that no text contains. Raises ModelFileError."""
        most = min(MAX_TOKENS, len(tokens) + len(self.added) + _MOST_MISSING)
        for one in sorted(self.added.values()):
            if not 0 <= one.id < most:
                raise ModelFileError(
                    f"{self.folder}: the added token {one.text[:40]!r} has the id {one.id}; {file} "
                    f"has {len(tokens)} tokens"
                )
            for missing in range(len(tokens), one.id + 1):
                tokens.append(f"<no token {missing}>")
                kinds.append(int(TokenKind.UNUSED))
            tokens[one.id] = one.text
            special = TokenKind.CONTROL if one.is_special else TokenKind.USER_DEFINED
            kinds[one.id] = int(special)

    def ids(self, tokens: list[str], usual: Mapping[str, int]) -> dict[str, int]:
        """`bos_token_id` and others, as the files name them, over those of `usual`."""
        named = {self.named(role) for role in _ROLES}
        places = {text: i for i, text in enumerate(tokens) if text in named}
        found = dict(usual)
        for role, key in _ROLES.items():
            text = self.named(role)
            if role in self.values and (text is None or text not in places):
                found.pop(key, None)
            elif text is not None:
                found[key] = places[text]
        return found


_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def name_of(value: object) -> str | None:
    """The text of a token, which stands alone or in an object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _lowercases(folder: Path) -> bool:
    """`do_lower_case`, in a folder of sentence-transformers. Raises ModelFileError."""
    names = [name for name in _SENTENCES if is_there(folder / name)]
    if not names or not is_there(folder / _MODULES):
        return False
    value = _json(folder, names[0]).get("do_lower_case", False)
    if not isinstance(value, bool):
        words = f"do_lower_case = {str(value)[:40]!r} should be true or false"
        raise ModelFileError(f"{folder / names[0]}: {words}")
    return value


def _json(folder: Path, name: str) -> JsonObject:
    return read_json_object(folder / name, MAX_BYTES, may_be_missing=True)


def _specials(values: JsonObject) -> list[object]:
    more = values.get("additional_special_tokens")
    roles = [value for name, value in values.items() if name.endswith("_token")]
    return roles + (more if isinstance(more, list) else [])


def _added_by_text(folder: Path) -> list[AddedToken]:
    """added_tokens.json: text -> id."""
    found = []
    for text, token_id in _json(folder, _ADDED).items():
        if type(token_id) is not int or not text:
            raise ModelFileError(f"{folder / _ADDED}: {text[:40]!r} should be a token with an id")
        found.append(AddedToken(token_id, text, False, Strip(False, False)))
    return found


def _added_by_id(folder: Path, config: JsonObject) -> list[AddedToken]:
    """`added_tokens_decoder` of tokenizer_config.json: id -> token."""
    entries = config.get("added_tokens_decoder", {})
    found = []
    for number, one in (entries if isinstance(entries, dict) else {}).items():
        text = one.get("content") if isinstance(one, dict) else None
        if not number.isdecimal() or len(number) > 10 or not isinstance(text, str) or not text:
            raise ModelFileError(
                f"{folder / _CONFIG}: added_tokens_decoder[{number[:40]!r}] should be a token with "
                "an id and a content"
            )
        strip = Strip(bool(one.get("lstrip")), bool(one.get("rstrip")))
        found.append(AddedToken(int(number), text, bool(one.get("special")), strip))
    return found
