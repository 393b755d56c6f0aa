"""Word rules: how byte-level tokenizers cut a text into words. A GGUF file names its rule.

The source of a rule is the tokenizer.json of the models that have it, or llama.cpp
(llama-vocab.cpp). Steps are applied in order, each to the pieces that the step before it made.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property, partial

import tokenizers as hf
from tokenizers import normalizers, pre_tokenizers

from mlc_llm.errors import UnsupportedModel, one_line
from mlc_llm.record import record

Step = Callable[[], pre_tokenizers.PreTokenizer]


def _split(expression: str) -> Step:
    """Each match is a piece, and so is the text between two matches."""
    return lambda: pre_tokenizers.Split(hf.Regex(expression), behavior="isolated")


_SPELL: Step = partial(pre_tokenizers.ByteLevel, add_prefix_space=False, use_regex=False)
"""Writes bytes as characters of GPT-2's table."""
_GPT2: Step = partial(pre_tokenizers.ByteLevel, add_prefix_space=False, use_regex=True)
"""Cuts with GPT-2's expression, then writes bytes as characters of its table."""
_EACH_DIGIT: Step = partial(pre_tokenizers.Digits, individual_digits=True)
_DIGIT_RUNS: Step = partial(pre_tokenizers.Digits, individual_digits=False)
_MARK_RUNS: Step = partial(pre_tokenizers.Punctuation, behavior="contiguous")

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
_SEED = _QWEN2.replace(r"]+[\r\n]*|", "]+|")
_MINICPM5 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")
_VIKING = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}{_REST}"
_GPT4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_ENDINGS}|{_BEFORE}{_UPPER}+{_LOWER}*{_ENDINGS}"
    rf"|\p{{N}}{{1,3}}{_REST}"
)
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""The letters that have upper and lower case in an older Unicode version."""
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_MARKS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@record()
class WordRule:
    """How a text is prepared for the merges."""

    steps: tuple[Step, ...]
    composes: bool = False
    """The text is changed to Unicode's composed form (NFC) first."""
    takes_whole_words: bool = False
    """If a word is a token, it becomes that token, even if no merges make it."""

    @cached_property
    def cutter(self) -> pre_tokenizers.PreTokenizer:
        """Cuts a text into words and writes them as characters of GPT-2's table."""
        made = [step() for step in self.steps]
        return made[0] if len(made) == 1 else pre_tokenizers.Sequence(made)

    @cached_property
    def normalizer(self) -> normalizers.Normalizer | None:
        """Changes the text before the cutter; None if nothing is changed."""
        return normalizers.NFC() if self.composes else None

    def whole(self) -> WordRule:
        """The same rule, but a word that is a token becomes that token."""
        return replace(self, takes_whole_words=True)

    def words(self, text: str) -> list[str]:
        """The words of a text, in characters of GPT-2's table."""
        if self.normalizer is not None and not text.isascii():
            text = self.normalizer.normalize_str(text)
        return [word for word, _ in self.cutter.pre_tokenize_str(text)]


_PLAIN = WordRule((_GPT2,))
_COMPOSED = WordRule((_GPT2,), composes=True)
_DIGITS = WordRule((_EACH_DIGIT, _GPT2))
_LLAMA3_WORDS = WordRule((_split(_LLAMA3), _SPELL), takes_whole_words=True)
_DBRX_WORDS = WordRule((_split(_LLAMA3), _SPELL))
_QWEN2_WORDS = WordRule((_split(_QWEN2), _SPELL))
_GPT4O_WORDS = WordRule((_split(_GPT4O), _SPELL))

RULES: dict[str, WordRule] = {
    **dict.fromkeys(("default", "gpt-2", "phi-2"), _PLAIN),
    **dict.fromkeys(("exaone4", "modern-bert", "roberta-bpe", "mellum", "a.x-4.0"), _PLAIN),
    **dict.fromkeys(("trillion", "granite-docling"), _PLAIN),
    **dict.fromkeys(("mpt", "olmo"), _COMPOSED),
    **dict.fromkeys(("smollm", "starcoder", "refact", "minerva-7b"), _DIGITS),
    "command-r": WordRule((_EACH_DIGIT, _GPT2), composes=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1"), _LLAMA3_WORDS),
    **dict.fromkeys(("lfm2", "glm4", "pixtral", "midm-2.0"), _LLAMA3_WORDS),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _DBRX_WORDS),
    "qwen2": WordRule((_split(_QWEN2), _SPELL), composes=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2"), _QWEN2_WORDS),
    **dict.fromkeys(("kormo", "f2llmv2"), _QWEN2_WORDS),
    "seed-coder": WordRule((_split(_SEED), _SPELL)),
    "minicpm5": WordRule(
        (_split(r"\p{N}{1,3}"), _split(_MINICPM5), _SPELL), takes_whole_words=True
    ),
    "qwen35": WordRule((_split(_QWEN35), _SPELL)),
    "tekken": WordRule((_split(_TEKKEN), _SPELL), takes_whole_words=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O_WORDS),
    "granite-embed-multi-97m": _GPT4O_WORDS.whole(),
    "tiny_aya": WordRule((_split(r"\d{1,3}(?=(?:\d{3})*\b)"), _split(_GPT4O), _SPELL)),
    "viking": WordRule((_split(_VIKING), _EACH_DIGIT, _SPELL)),
    # Digits in groups of three, from the right.
    "superbpe": WordRule((_split(r"\p{N}+"), _split(r"(?=(\d{3})+(?!\d))"), _SPELL)),
    # The last two steps see characters of the table. Some of them are digits ("¼").
    "falcon": WordRule((_MARK_RUNS, _GPT2, _DIGIT_RUNS, _split("[0-9][0-9][0-9]"))),
    "deepseek-llm": WordRule(
        (
            _split(r"[\r\n]"),
            _split(rf"\s?[{_CASED}]+"),
            _split(rf"\s?{_DEEPSEEK_MARKS}+"),
            _split(r"\s+$"),
            _split(_EAST_ASIAN),
            _EACH_DIGIT,
            _SPELL,
        )
    ),
    "deepseek-coder": WordRule(
        (
            _split(r"[\r\n]"),
            _split(r"\s?\p{L}+"),
            _split(r"\s?\p{P}+"),
            _split(_EAST_ASIAN),
            _EACH_DIGIT,
            _SPELL,
        )
    ),
    "deepseek-v3": WordRule(
        (
            _split(r"\p{N}{1,3}"),
            _split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
            _split(_DEEPSEEK_V3),
            _SPELL,
        )
    ),
}
"""The rule for each value of `tokenizer.ggml.pre`."""
BEGINS = frozenset(
    {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1"}
    | {"lfm2", "pixtral", "midm-2.0", "tekken"}
)
"""Rules whose texts begin with the begin-of-text token, if the file does not say it (llama.cpp)."""
SEPARATES = frozenset({"roberta-bpe"})
"""Rules whose pairs of texts have a separator between them, if the file does not say it
(llama.cpp)."""


_COMPOSING = frozenset({"gptneox", "qwen35", "qwen35moe"})
"""Architectures whose text is always composed (NFC), whatever the rule says."""


@cache
def word_rule(pre: str, architecture: str) -> WordRule:
    """The rule of a model's text. Raises `UnsupportedModel` for an unknown name."""
    if pre not in RULES:
        known = ", ".join(RULES)
        raise UnsupportedModel(f"tokenizer.ggml.pre = {pre!r} is not supported; supported: {known}")
    rule = RULES[pre]
    return replace(rule, composes=True) if architecture in _COMPOSING else rule


_PARTS = re.compile(
    r"\\[pP]\{\w+\}|\\.|\[\^?\]?(?:\\.|[^\]])*\]|(\}\+)(?=[|)]|$)|(\$)|(\}\+)", re.DOTALL
)


@cache
def rule_of_expression(expression: str) -> WordRule:
    """The rule of tiktoken that has this expression. A word that is a token becomes that token.

    What means another thing in the `tokenizers` library is rewritten: `$` is the end of the text,
    and `{1,3}+` is possessive. Raises UnsupportedModel.
    """
    if any(found[3] for found in _PARTS.finditer(expression)):
        raise UnsupportedModel(f"the pattern {expression[:80]!r}: }}+ inside an alternative")
    rewritten = _PARTS.sub(lambda one: "}" if one[1] else r"\z" if one[2] else one[0], expression)
    try:
        rule = WordRule((_split(rewritten), _SPELL), takes_whole_words=True)
        rule.words("")
    except Exception as error:  # the library raises bare exceptions
        raise UnsupportedModel(f"the pattern {expression[:80]!r}: {one_line(error)}") from None
    return rule
