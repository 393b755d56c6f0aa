"""The control tokens that a model wants around a text that stands alone, or around a pair.

Formats: `tokenizer.ggml.*` of GGUF, whose flags mean what they mean in llama.cpp; `post_processor`
of tokenizer.json (the `tokenizers` library).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mlc_llm.errors import ModelFileError
from mlc_llm.tokenizers.vocabulary import NO_ID
from mlc_llm.tokenizers.word_rules import SEPARATES

_GGUF = "tokenizer.ggml."
Ids = tuple[int, ...]


class Frame(NamedTuple):
    """start, a text, end; or start, a text, between, another text, end."""

    start: Ids = ()
    between: Ids = ()
    end: Ids = ()

    def around(self, text: Sequence[int]) -> list[int]:
        """The tokens of a text in the frame."""
        return [*self.start, *text, *self.end]

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], int]:
        """The tokens of two texts in the frame, and where those of the second one begin."""
        before = [*self.start, *first, *self.between]
        return [*before, *second, *self.end], len(before)


def doubled_frame(ids: Mapping[str, int]) -> Frame:
    """RoBERTa's: two end tokens stand between texts. ids: as in `Vocabulary`."""
    start, end = ((ids[key],) if key in ids else () for key in ("bos_token_id", "eos_token_id"))
    return Frame(start, end + end, end)


def gguf_frame(metadata: Mapping[str, object], count: int, add_bos: bool = False) -> Frame:
    """Of a file's tokenizer with so many tokens. BERT's always has both ends. The metadata is not
    copied, because that would decode all tokens and merges.

    add_bos: the flag, or what it is where the file has none. Raises ModelFileError.
    """

    def token(*names: str) -> Ids:
        """The first of these that the file has."""
        for name in names:
            value = metadata.get(f"{_GGUF}{name}_token_id")
            if value is not None and value != NO_ID:
                if type(value) is not int or not 0 <= value < count:
                    words = f"{_GGUF}{name}_token_id = {str(value)[:40]} should be 0 to {count - 1}"
                    raise ModelFileError(words)
                return (value,)
        return ()

    model = metadata.get(f"{_GGUF}model")

    usual = {
        "bos": add_bos,
        "eos": model == "t5",
        "sep": model == "gpt2" and metadata.get(f"{_GGUF}pre") in SEPARATES,
    }

    def added(name: str, *names: str) -> Ids:
        flag = metadata.get(f"{_GGUF}add_{name}_token", usual[name])
        return token(*names) if flag is True else ()

    if model == "bert":
        end = token("seperator", "eos")
        return Frame(token("cls", "bos"), end, end)
    end = added("eos", "eos")
    return Frame(added("bos", "bos"), end + added("sep", "seperator", "eos"), end)


def json_frame(processor: object) -> Frame | None:
    """Of a `post_processor`; None if it adds no tokens, or in another way than a frame."""
    for one in _steps(processor):
        kind = one.get("type")
        if kind in ("BertProcessing", "RobertaProcessing"):
            start, end = _id_of(one.get("cls")), _id_of(one.get("sep"))
            return Frame(start, end if kind == "BertProcessing" else end + end, end)
        if kind == "TemplateProcessing":
            return _template(one)
    return None


def _steps(processor: object) -> Iterator[Mapping[str, object]]:
    if not isinstance(processor, Mapping):
        return
    yield processor
    inner = processor.get("processors")
    for one in inner if isinstance(inner, list) else ():
        yield from _steps(one)


def _id_of(pair: object) -> Ids:
    """pair: [text, id]."""
    found = pair[1] if isinstance(pair, list) and len(pair) == 2 else None
    return (found,) if type(found) is int else ()


def _template(one: Mapping[str, object]) -> Frame | None:
    tokens = one.get("special_tokens")
    known = tokens if isinstance(tokens, Mapping) else {}
    single = _parts(one.get("single"), known)
    pair = _parts(one.get("pair"), known)
    if len(single) != 2:
        return None
    between = pair[1] if len(pair) == 3 and (pair[0], pair[2]) == (single[0], single[1]) else ()
    return Frame(single[0], between, single[1])


def _parts(items: object, known: Mapping[str, object]) -> list[Ids]:
    """The tokens before, between and behind the texts of a template."""
    found: list[Ids] = [()]
    for item in items if isinstance(items, list) else ():
        if "Sequence" in item:
            found.append(())
        else:
            named = known.get(str(item["SpecialToken"]["id"]))
            ids = named.get("ids") if isinstance(named, Mapping) else None
            found[-1] += tuple(one for one in ids or () if type(one) is int)
    return found
