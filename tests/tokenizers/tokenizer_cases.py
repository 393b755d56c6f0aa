"""The tokenizers that are held against Transformers, as GGUF metadata, and how answers are kept."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizer_corpus import corpus

ANSWERS = Path(__file__).with_name("oracle_ids.json")
DIGEST_BYTES = 4


@dataclass(frozen=True)
class Case:
    """One tokenizer. `pre` changes the rule of the default model's; `architecture` means a small
    SentencePiece vocabulary read as this architecture reads it. Neither: the default model's."""

    name: str
    pre: str | None = None
    architecture: str | None = None
    plain: bool = False
    """Names of control tokens are ordinary text."""

    @property
    def texts(self) -> list[str]:
        """All texts for the default model; for the others a share, to keep the file small."""
        whole = self.pre is None and self.architecture is None
        return corpus() if whole else corpus()[::4]

    def metadata(self, default_model: Mapping[str, Any] | None) -> dict[str, Any]:
        """`default_model` may be None for the small vocabularies."""
        if self.architecture is not None:
            return sentencepiece_metadata(self.architecture)
        assert default_model is not None
        taken = {key: default_model[key] for key in default_model if key.startswith("tokenizer.")}
        taken["general.architecture"] = "llama"
        return taken if self.pre is None else {**taken, "tokenizer.ggml.pre": self.pre}


BYTE_LEVEL = [
    Case("smollm2"),
    Case("smollm2-plain", plain=True),
    *(Case(f"pre-{pre}", pre=pre) for pre in ("default", "llama-bpe", "qwen2", "tekken", "gpt-4o")),
]
SENTENCEPIECE = [
    Case(f"spm-{architecture}{'-plain' * plain}", architecture=architecture, plain=plain)
    for architecture in ("llama", "gemma3", "phi3")
    for plain in (False, True)
]
CASES = [*BYTE_LEVEL, *SENTENCEPIECE]


def digests(ids: Sequence[Sequence[int]]) -> str:
    """A short fingerprint of the ids of each text, all in a row, in base64."""
    parts = [hashlib.sha256(repr(list(one)).encode()).digest()[:DIGEST_BYTES] for one in ids]
    return base64.b64encode(b"".join(parts)).decode()


def different(expected: str, ids: Sequence[Sequence[int]]) -> list[int]:
    """Numbers of the texts whose ids are not those of the fingerprints."""
    want, have = base64.b64decode(expected), base64.b64decode(digests(ids))
    assert len(want) == len(have)
    step = DIGEST_BYTES
    return [i for i in range(len(ids)) if want[i * step :][:step] != have[i * step :][:step]]


def sentencepiece_metadata(architecture: str, pieces: int = 1500) -> dict[str, Any]:
    """A SentencePiece vocabulary as GGUF metadata, made of the corpus: control and byte tokens,
    characters, and frequent strings with scores (several of them equal)."""
    ends = ["<bos>", "<eos>"] if architecture == "gemma3" else ["<s>", "</s>"]
    tokens = ["<unk>", *ends, "<start_of_turn>", "<end_of_turn>", "<think>", "<pad>", "<mask>"]
    kinds = [2, 3, 3, 3, 3, 4, 3, 3]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    kinds += [6] * 256
    words = [piece for piece in _frequent_pieces(pieces) if piece not in tokens]
    scores = [0.0] * len(tokens) + [-float(i // 3) for i in range(len(words))]
    prefix = "tokenizer.ggml."
    return {
        "general.architecture": architecture,
        f"{prefix}model": "llama",
        f"{prefix}pre": "default",
        f"{prefix}tokens": tokens + words,
        f"{prefix}scores": scores,
        f"{prefix}token_type": kinds + [1] * len(words),
        f"{prefix}bos_token_id": 1,
        f"{prefix}eos_token_id": 2,
        f"{prefix}unknown_token_id": 0,
        f"{prefix}padding_token_id": 6,
    }


def _frequent_pieces(count: int) -> list[str]:
    """Frequent strings of 1 to 8 characters, every character of the common ones among them."""
    seen: dict[str, int] = {}
    for text in corpus()[:600]:
        spelled = text.replace(" ", "▁")[:400]
        for length in range(1, 9):
            for start in range(len(spelled) - length + 1):
                piece = spelled[start : start + length]
                seen[piece] = seen.get(piece, 0) + length
    ranked = sorted(seen, key=lambda piece: (-seen[piece], piece))
    return ranked[:count]
