"""Word rules without a vocabulary to test them on: words are those of llama.cpp's expressions.

The expressions are facts of llama.cpp's `llama-vocab.cpp` at the version of `makers_vocabularies`.
"""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers as hf
from test_tokenizer import KEY, byte_metadata
from tokenizer_corpus import corpus
from tokenizers import pre_tokenizers

from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.byte_level import CHARACTERS
from mlc_llm.tokenizers.word_rules import RULES

CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
LETTERS = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = rf"{LETTERS}|\p{{N}}{{1,3}}{REST}"
QWEN2 = rf"{LETTERS}|\p{{N}}{REST}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TINY_AYA = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SEED = rf"{LETTERS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
MINICPM5 = rf"{LETTERS}|\p{{N}}+{REST}"
VIKING = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

EXPRESSIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("exaone4", "modern-bert", "roberta-bpe", "mellum", "a.x-4.0"), (GPT2,)),
    **dict.fromkeys(("trillion", "granite-docling"), (GPT2,)),
    "minerva-7b": (r"\p{N}", GPT2),
    **dict.fromkeys(("falcon-h1", "lfm2", "glm4", "chatglm-bpe", "pixtral"), (LLAMA3,)),
    "midm-2.0": (LLAMA3,),
    **dict.fromkeys(("stablelm2", "kormo", "f2llmv2"), (QWEN2,)),
    "seed-coder": (SEED,),
    "minicpm5": (r"\p{N}{1,3}", MINICPM5),
    "tiny_aya": (r"\d{1,3}(?=(?:\d{3})*\b)", TINY_AYA),
    "viking": (VIKING, r"\p{N}"),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
}
WHOLE = {"falcon-h1", "lfm2", "glm4", "pixtral", "midm-2.0", "minicpm5"}
"""llama.cpp's `ignore_merges`."""
BEGINS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral", "midm-2.0"}
BEGINS |= {"tekken"}
TRICKY = (
    "It's DON'T we'Ve I'm you'll he'd 's 'sun",
    "1 12 123 1234 12345678 1,234.56 x86_64 ½ ²³ ٣٤٥٦ Ⅻ 1٣2",
    "a  b   c\t\td \n\n e\r\n\r\n  f  \n",
    "  indented();\n\n\n\t}/* x */ //\r\n!!\n??\n\n  ",
    "日本語と中国 한국어 ไทย हिन्दी عربي، ок। ۔",
    "CamelCase HTTPServer iPhone ǅ éÉ e\u0301a n\u0303 ÀÉß straße",
    "🙂🙃 👩‍👩‍👧 \u00a0\u2003x\u200b… “q” — (a|b).c,d!e?f",
    " ",
    "\n",
    "",
)


def words_of(expressions: tuple[str, ...], text: str) -> list[str]:
    """The matches of each expression in the pieces before it, and what lies between them."""
    cutters = [pre_tokenizers.Split(hf.Regex(one), "isolated") for one in expressions]
    whole = pre_tokenizers.Sequence(cutters)
    words = [word for word, _ in whole.pre_tokenize_str(text)]
    return ["".join(CHARACTERS[byte] for byte in word.encode()) for word in words]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_words_are_those_of_llama_cpp(name: str) -> None:
    rule = RULES[name]
    assert rule.takes_whole_words == (name in WHOLE) and not rule.composes
    for text in (*TRICKY, *corpus()):
        assert rule.words(text) == words_of(EXPRESSIONS[name], text), text


def test_digits_in_groups_of_three() -> None:
    assert RULES["superbpe"].words("a 1234567 b 12") == ["aĠ", "1", "234", "567", "ĠbĠ", "12"]
    assert RULES["tiny_aya"].words("1234567 12") == ["1", "234", "567", "Ġ", "12"]


def test_granite_s_words_are_those_of_gpt_4o() -> None:
    """llama.cpp writes the classes of letters in another way, for its own engine."""
    ours, theirs = RULES["granite-embed-multi-97m"], RULES["gpt-4o"]
    assert ours.takes_whole_words and not theirs.takes_whole_words
    assert [ours.words(text) for text in TRICKY] == [theirs.words(text) for text in TRICKY]


@pytest.mark.parametrize("name", RULES)
def test_texts_begin_where_llama_cpp_begins_them(name: str) -> None:
    usual = Tokenizer.from_gguf_metadata(byte_metadata(pre=name))
    assert usual.add_bos == (name in BEGINS)
    for flag in (False, True):
        stated = Tokenizer.from_gguf_metadata(byte_metadata(pre=name, add_bos_token=flag))
        assert stated.add_bos == flag


@pytest.mark.parametrize("name", ["roberta-bpe", "gpt-2"])
def test_the_separator_of_roberta(name: str) -> None:
    def between(**changes: Any) -> tuple[int, ...]:
        metadata = byte_metadata(pre=name, seperator_token_id=7, **changes)
        assert metadata[f"{KEY}pre"] == name
        return Tokenizer.from_gguf_metadata(metadata).frame.between

    assert between() == ((7,) if name == "roberta-bpe" else ())
    assert between(add_sep_token=False) == ()
    assert between(add_sep_token=True) == (7,)
