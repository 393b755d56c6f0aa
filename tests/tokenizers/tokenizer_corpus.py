"""Texts that tokenizers get wrong: a fixed corpus, the same on every machine.

Only `Random.random` is used, whose values Python promises to keep for a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

SEED = 20261

_ENGLISH = [
    "the", "of", "and", "a", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on",
    "are", "as", "with", "his", "they", "I", "at", "be", "this", "have", "from", "or", "one",
    "had", "by", "word", "but", "not", "what", "all", "were", "we", "when", "your", "can",
    "said", "there", "use", "an", "each", "which", "she", "do", "how", "their", "if", "will",
    "up", "other", "about", "out", "many", "then", "them", "these", "so", "some", "her",
    "would", "make", "like", "him", "into", "time", "has", "look", "two", "more", "write", "go",
    "see", "number", "no", "way", "could", "people", "my", "than", "first", "water", "been",
    "call",
]  # fmt: skip
_CODE = [
    "def f(x, *, y=0):\n    return x ** y\n",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] += 0x1F;\n}\n",
    "#include <stdio.h>\r\nint main(void) { return 0; }\r\n",
    "SELECT * FROM t WHERE a >= 10 AND b != 'it''s';",
    '{"key": [1, 2.5e-3, null, true], "nested": {"a": "\\u00e9\\n"}}',
    "<div class=\"a b\" id='x'>&nbsp;&lt;p&gt;</div>",
    "let v: Vec<Option<&str>> = vec![None; 16]; // 日本",
    "x = lambda *a, **k: (yield from a) if k else ...",
    "git commit -m 'fix: #1234' && git push --force-with-lease",
    "\\begin{align} \\frac{\\partial f}{\\partial x} = \\sum_{i=0}^{\\infty} x_i \\end{align}",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org",
    "if (a&&b||!c) {return~d^e|f<<2>>>3;}",
    "class A<T extends B> implements C { @Override public T get() { return null; } }",
    "0xDEADBEEF 1_000_000 3.14159 1e10 .5 5. -0 +1",
    "```python\nprint('hi')\n```\n\n* item\n    * sub\n\t* tab\n",
]
_WORLD = [
    "日本語のテキストを分割する。東京タワー、富士山。",
    "我们今天去北京，明天回上海。",
    "한국어 문장을 토큰으로 나눕니다.",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "שלום עולם, מה שלומך היום?",
    "Привет, мир! Как дела?",
    "Γειά σου Κόσμε",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "สวัสดีชาวโลก",
    "Xin chào thế giới, tiếng Việt có dấu",
    "Ünïcödé ňåmés ÀÉÎÕÜ ßœæ ıİ",
    "e\u0301 a\u0308 o\u0302 n\u0303 combining",
    "ﬁ ﬂ ﬃ Ⅷ ½ ² ™ № ℃",
    "ａｂｃ　ＡＢＣ１２３",
    "١٢٣ ४५६ ๗๘๙ ۱۲",
    "\u202eright to left\u202c \u200bzero\u200dwidth\ufeff",
]
_EMOJI = [
    "😀😃😄😁",
    "👍🏽👎🏿",
    "👨‍👩‍👧‍👦 family",
    "🇫🇷🇩🇪🇯🇵",
    "❤️‍🔥 ✨",
    "🏳️‍🌈🏴‍☠️",
    "1️⃣2️⃣#️⃣",
    "text😀text 😀 text",
    "🧑🏻‍💻🤷🏾‍♀️",
    "☺︎☺️",
]
_LOOKALIKES = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_start",
    "im_end|>",
    "<|im_start|",
    "<||im_end|>>",
    "<s>",
    "</s>",
    "<unk>",
    "<bos>",
    "<eos>",
    "<pad>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<unused12>",
    "<0x0A>",
    "<0xFF>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "<repo_name>",
    "<file_sep>",
    "<jupyter_start>",
    "<empty_output>",
    "▁",
    "▁▁the",
    "Ġthe",
    "ĊĊ",
    "[multimodal]",
    "<think>",
    "</think>",
    "<tool_call>",
    "<b>",
    "</table>",
    "<h1>",
]
_SPACES = [" ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2028", "\v\f"]
_RANGES = [
    (0x00, 0x7F),
    (0x80, 0x24F),
    (0x250, 0x5FF),
    (0x600, 0xFFF),
    (0x1000, 0x2FFF),
    (0x3000, 0x9FFF),
    (0xA000, 0xD7FF),
    (0xE000, 0xFFFF),
    (0x1F000, 0x1FAFF),
    (0x10000, 0x10FFFF),
]


class _Chooser:
    """Choices made of `Random.random` alone."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, bound: int) -> int:
        return int(self._random() * bound)

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def one(self, items: Sequence[str]) -> str:
        return items[self.below(len(items))]

    def many(self, items: Sequence[str], low: int, high: int) -> list[str]:
        return [self.one(items) for _ in range(self.between(low, high))]


def corpus() -> list[str]:
    """2,300 different texts."""
    texts = ["", *_CODE, *_WORLD, *_EMOJI, *_LOOKALIKES, *_SPACES]
    texts += [
        space + word + space for space in _SPACES for word in ("a", "1", "é", "!", "<|im_end|>")
    ]
    texts += [" " * n + tail for n in range(1, 40, 3) for tail in ("", "x", "1", "\n", "\ty")]
    texts += ["a" * 3000, "é" * 500, " \n" * 300, "12345678901234567890" * 20, "😀" * 200]
    choose = _Chooser(SEED)
    seen = dict.fromkeys(texts)
    while len(seen) < 2300:
        seen[_MAKERS[choose.below(len(_MAKERS))](choose)] = None
    return list(seen)


def _prose(choose: _Chooser) -> str:
    words = choose.many(_ENGLISH, 3, 40)
    marks = [",", ".", "!", "?", "'s", "'LL", "'re", "—", "...", ":", ";", ""]
    return " ".join(word.title() if choose.below(9) == 0 else word for word in words) + choose.one(
        marks
    )


def _numbers(choose: _Chooser) -> str:
    shown = [str(choose.below(10 ** choose.between(1, 12))) for _ in range(choose.between(1, 8))]
    return choose.one([" ", ", ", "", "  ", "-", ".", "\n", "+"]).join(shown)


def _mixture(choose: _Chooser) -> str:
    kinds = (_CODE, _WORLD, _EMOJI, _LOOKALIKES, _SPACES, _ENGLISH)
    return "".join(choose.one(kinds[choose.below(len(kinds))]) for _ in range(choose.between(2, 8)))


def _white_space(choose: _Chooser) -> str:
    words = ["a", "1", "", "the", "x1", "é", "{", "日"]
    return "".join(choose.one(_SPACES) * choose.between(1, 5) + choose.one(words) for _ in range(6))


def _cut_code(choose: _Chooser) -> str:
    code = choose.one(_CODE) * 2
    start = choose.below(len(code))
    return code[start : start + choose.between(1, 60)]


def _unicode(choose: _Chooser) -> str:
    """Any valid UTF-8: code points of one range or of all, surrogates left out."""
    fixed = _RANGES[choose.below(len(_RANGES))]
    mixed = choose.below(2)
    points = []
    for _ in range(choose.between(1, 24)):
        low, high = _RANGES[choose.below(len(_RANGES))] if mixed else fixed
        points.append(choose.between(low, high))
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


def _broken_names(choose: _Chooser) -> str:
    name = choose.one(_LOOKALIKES)
    cut = choose.below(len(name) + 1)
    return choose.one(_ENGLISH) + name[:cut] + choose.one(["", " ", "\n", "|", "<"]) + name[cut:]


_MAKERS: list[Callable[[_Chooser], str]] = [
    _prose,
    _numbers,
    _mixture,
    _white_space,
    _cut_code,
    _unicode,
    _broken_names,
]
