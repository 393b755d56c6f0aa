"""Ids equal those of the programs that make the files: sentencepiece, tiktoken, tokenizers and
Transformers. The vocabularies are trained here. Tests of a package that is missing are skipped."""

from __future__ import annotations

import base64
import io
import json
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tokenizers as hf
from tokenizer_corpus import corpus
from tokenizers import models, pre_tokenizers, trainers

from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.byte_level import BYTES
from mlc_llm.tokenizers.spm_model import read_model

EDGES = [
    "", " ", "   ", "  lead", "trail  ", "▁", "▁▁a  b   ", "a▁", "<s>a</s>", "<unk> ⁇", "<0x0A>x",
    "\t\tx\n\n y", "a\n  ", "a \n\n", "\u0000 x", "\u200b\u00ad\ufeff ", "\u0085\u00a0 x\u2028 ",
    "ﬁ\u0301 e\u0301 \u1e9b\u0323 ｶﾞ ① ㍿ Ⅷ ½", "가각 \u1100\u1161\u11a8", "ﬁx ab  c",
    "a<think>b <think> hello world <c> the thing", "'S 'LL I'm 1234567", "!!!\n\n/x", "$5 $",
    "a" * 500, "é" * 300, "😀" * 300,
]  # fmt: skip
"""Texts beside the corpus."""


def package(name: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the packages' own
        found: ModuleType = pytest.importorskip(name, reason=f"the package {name} is missing")
    return found


def texts() -> list[str]:
    return [*corpus()[::2], *EDGES]


def wrong(made: Tokenizer, encode: Callable[[str], list[int]], **options: Any) -> list[object]:
    """The first texts whose ids differ, with both lists."""
    every = texts()
    both = zip(every, made.encode_batch(every, **options), strict=True)
    return [(one, ids, other) for one, ids in both if (other := encode(one)) != ids][:3]


# --- SentencePiece -----------------------------------------------------------------------------

SPM: dict[str, dict[str, Any]] = {
    "bpe-llama": {"byte_fallback": True, "split_digits": True},
    "bpe-gemma": {
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["▁▁", "▁▁▁", "\t", "<think>", "hello▁w"],
        "control_symbols": ["<start_of_turn>", "<c>"],
    },
    "bpe-nmt": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "bpe-folded": {"normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True},
    "bpe-phrases": {"split_by_whitespace": False, "normalization_rule_name": "nmt_nfkc"},
    "unigram-t5": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "unigram-bytes": {"byte_fallback": True},
    "unigram-wholes": {
        "byte_fallback": True,
        "user_defined_symbols": ["<think>", "ing", "the", "ﬁx", "ab  c"],
        "control_symbols": ["<c>"],
        "normalization_rule_name": "nmt_nfkc",
    },
    "unigram-no-prefix": {
        "normalization_rule_name": "nfkc",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": True,
    },
}
"""Options of training. What they do not say is as in Llama's vocabularies."""


def trained(spm: ModuleType, kind: str) -> bytes:
    lines = [text.replace("\n", " ")[:1000] for text in corpus()[:700] if text.strip()]
    options = {
        "model_type": kind.partition("-")[0],
        "vocab_size": 2200,
        "character_coverage": 0.98,
        "hard_vocab_limit": False,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "minloglevel": 2,
        "num_threads": 1,
    }
    written = io.BytesIO()
    sentences = iter(lines)
    spm.SentencePieceTrainer.train(
        sentence_iterator=sentences, model_writer=written, **(options | SPM[kind])
    )
    return written.getvalue()


@pytest.mark.parametrize("kind", SPM)
def test_sentencepiece(kind: str, tmp_path: Path) -> None:
    spm = package("sentencepiece")
    data = trained(spm, kind)
    (tmp_path / "tokenizer.model").write_bytes(data)
    made, theirs = Tokenizer(tmp_path), spm.SentencePieceProcessor(model_proto=data)
    assert made.vocab_size == theirs.vocab_size()
    assert (made.bos_token_id, made.eos_token_ids) == (theirs.bos_id(), {theirs.eos_id()})
    assert wrong(made, theirs.encode) == []
    assert made.decode(made.encode("Hello world")).lower() == "hello world"


def as_gguf(data: bytes, folder: Path) -> dict[str, Any]:
    """What llama.cpp's converter writes of a unigram model."""
    (folder / "spiece.model").write_bytes(data)
    model = read_model(folder / "spiece.model")
    values = {
        "model": "t5",
        "tokens": model.tokens,
        "scores": model.scores,
        "token_type": model.kinds,
        "precompiled_charsmap": list(model.characters),
        "add_space_prefix": model.adds_space,
        "remove_extra_whitespaces": model.merges_spaces,
        "unknown_token_id": model.unknown_id,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


@pytest.mark.parametrize("kind", [kind for kind in SPM if kind.startswith("unigram")])
def test_unigram_out_of_gguf(kind: str, tmp_path: Path) -> None:
    spm = package("sentencepiece")
    data = trained(spm, kind)
    made = Tokenizer.from_gguf_metadata(as_gguf(data, tmp_path))
    assert wrong(made, spm.SentencePieceProcessor(model_proto=data).encode) == []


FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
"""XLM-RoBERTa's first ids; its files begin with <unk>, <s>, </s>."""


def fairseq(spm: ModuleType, data: bytes) -> Callable[[str], list[int]]:
    """Ids as XLM-RoBERTa has them (fairseq): one more than the file's, and 3 for unknown text."""
    theirs = spm.SentencePieceProcessor(model_proto=data)
    return lambda text: [i + 1 if i else 3 for i in theirs.encode(text)]


@pytest.mark.parametrize(
    "config", [{"tokenizer_class": "XLMRobertaTokenizer"}, {"model_type": "xlm-roberta"}]
)
def test_xlm_roberta(config: dict[str, str], tmp_path: Path) -> None:
    spm = package("sentencepiece")
    data = trained(spm, "unigram-t5")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(data)
    name = "config.json" if "model_type" in config else "tokenizer_config.json"
    (tmp_path / name).write_text(json.dumps(config), encoding="utf-8")
    made, theirs = Tokenizer(tmp_path), fairseq(spm, data)
    size = spm.SentencePieceProcessor(model_proto=data).vocab_size()
    assert made.vocab_size == size + 2
    assert (made.bos_token_id, made.eos_token_ids, made.add_bos) == (0, {2}, True)
    assert made.frame.pair([7], [8]) == ([0, 7, 2, 2, 8, 2], 4)
    assert wrong(made, theirs) == []
    assert made.encode("the<mask>", special=True) == [*theirs("the"), size + 1]
    assert made.decode(theirs("Hello world")).lower() == "hello world"


def test_xlm_roberta_out_of_gguf(tmp_path: Path) -> None:
    """The converter writes the ids of fairseq."""
    spm = package("sentencepiece")
    data = trained(spm, "unigram-t5")
    metadata = as_gguf(data, tmp_path)
    first = {"tokens": FAIRSEQ, "scores": [0.0] * 4, "token_type": [3, 3, 3, 2]}
    for name, values in first.items():
        metadata[f"tokenizer.ggml.{name}"] = values + metadata[f"tokenizer.ggml.{name}"][3:]
    metadata["tokenizer.ggml.unknown_token_id"] = 3
    assert wrong(Tokenizer.from_gguf_metadata(metadata), fairseq(spm, data)) == []


def test_xlm_roberta_in_tokenizer_json(tmp_path: Path) -> None:
    """The file that Transformers writes; the maker is the `tokenizers` library."""
    spm = package("sentencepiece")
    data = trained(spm, "unigram-t5")
    (tmp_path / "spiece.model").write_bytes(data)
    model = read_model(tmp_path / "spiece.model")
    rows = [(text, 0.0) for text in FAIRSEQ]
    rows += zip(model.tokens[3:], model.scores[3:], strict=True)
    theirs = hf.Tokenizer(models.Unigram([*rows, ("<mask>", 0.0)], unk_id=3))
    theirs.normalizer = hf.normalizers.Precompiled(model.characters)
    theirs.pre_tokenizer = pre_tokenizers.Metaspace()
    theirs.decoder = hf.decoders.Metaspace()
    theirs.add_special_tokens([*FAIRSEQ, "<mask>"])
    theirs.post_processor = hf.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    theirs.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "XLMRobertaTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    made = Tokenizer(tmp_path)
    assert (made.bos_token_id, made.eos_token_ids, made.add_bos) == (0, {2}, True)
    theirs.encode_special_tokens = True
    assert wrong(made, lambda text: list(theirs.encode(text, add_special_tokens=False).ids)) == []


# --- byte-level BPE ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def byte_level() -> hf.Tokenizer:
    """A trained byte-level vocabulary with one special token."""
    made = hf.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=2500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    made.train_from_iterator(corpus(), trainer)
    return made


def bpe_folder(folder: Path, byte_level: hf.Tokenizer, config: dict[str, Any]) -> Path:
    byte_level.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_bpe_files(byte_level: hf.Tokenizer, tmp_path: Path) -> None:
    made = Tokenizer(bpe_folder(tmp_path, byte_level, {"tokenizer_class": "GPT2Tokenizer"}))
    theirs = hf.Tokenizer(byte_level.model)
    theirs.pre_tokenizer = byte_level.pre_tokenizer
    assert wrong(made, lambda text: list(theirs.encode(text).ids)) == []


QWEN2 = {
    "tokenizer_class": "Qwen2Tokenizer",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "bos_token": None,
    "added_tokens_decoder": {
        str(2500 + i): {
            **{"content": text, "special": special, "lstrip": False, "rstrip": False},
            **{"single_word": False, "normalized": False},
        }
        for i, (text, special) in enumerate([("<|im_end|>", True), ("<think>", False)])
    },
}


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("config", [{"tokenizer_class": "GPT2Tokenizer"}, QWEN2])
def test_bpe_files_of_transformers(
    config: dict[str, Any],
    special: bool,
    byte_level: hf.Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    theirs = of_transformers(bpe_folder(tmp_path, byte_level, config), config["tokenizer_class"])
    made = Tokenizer(tmp_path)
    options = {"add_special_tokens": False, "split_special_tokens": not special}
    assert wrong(made, lambda text: theirs.encode(text, **options), special=special) == []


def of_transformers(folder: Path, name: str) -> Any:
    transformers = package("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, name).from_pretrained(str(folder))


# --- WordPiece ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lowercase", [False, True])
def test_word_pieces(lowercase: bool, tmp_path: Path) -> None:
    theirs = hf.BertWordPieceTokenizer(lowercase=lowercase)
    theirs.train_from_iterator(corpus(), vocab_size=2500, show_progress=False)
    theirs.save_model(str(tmp_path))
    config = json.dumps({"do_lower_case": lowercase})
    (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8")
    plain = hf.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=lowercase)
    plain._tokenizer.encode_special_tokens = True
    made = Tokenizer(tmp_path)
    encode = lambda text: list(plain.encode(text, add_special_tokens=False).ids)  # noqa: E731
    assert wrong(made, encode) == []


# --- tiktoken ----------------------------------------------------------------------------------

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TIKTOKEN: list[tuple[str, str, str]] = [
    ("cl100k_base.tiktoken", "", ""),
    ("o200k_base.tiktoken", "", ""),
    ("qwen.tiktoken", "", LLAMA3.replace("{1,3}", "")),
    ("tokenizer.model", "llama", LLAMA3),
]
"""Name of the file, type of the model, expression; "": the package's own for this name."""


def expression_of(file: str) -> str:
    """The expression of a vocabulary that the package tiktoken knows, out of its source."""
    source = Path(package("tiktoken_ext.openai_public").__file__ or "").read_text(encoding="utf-8")
    body = source.partition(f"def {file.partition('.')[0]}(")[2].partition("\ndef ")[0]
    found = [one for one in body.split('"""')[1::2] if "\\p{" in one or "\\s" in one]
    return "|".join(found)


TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The expression in Mistral's files."""


def rank_file(ranks: dict[bytes, int]) -> str:
    return "".join(f"{base64.b64encode(token).decode()} {i}\n" for token, i in ranks.items())


def ranks_of(byte_level: hf.Tokenizer) -> dict[bytes, int]:
    entries = sorted(byte_level.get_vocab().items(), key=lambda entry: entry[1])
    tokens: Sequence[str] = [token for token, _ in entries if token != "<|endoftext|>"]
    return {bytes(BYTES[one] for one in token): i for i, token in enumerate(tokens)}


def test_tekken(byte_level: hf.Tokenizer, tmp_path: Path) -> None:
    theirs = package("mistral_common.tokens.tokenizers.tekken")
    special, trained = 30, [one for one in ranks_of(byte_level) if len(one) > 1]
    ranks = {one: i for i, one in enumerate([*(bytes([i]) for i in range(256)), *trained])}
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, i in ranks.items()
    ]
    named = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    config = {
        "pattern": TEKKEN, "num_vocab_tokens": len(vocab), "version": "v7",
        "default_vocab_size": len(vocab) - 10 + special, "default_num_special_tokens": special,
    }  # fmt: skip
    stated = [{"rank": i, "token_str": one, "is_control": True} for i, one in enumerate(named)]
    values = {"config": config, "vocab": vocab, "special_tokens": stated}
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        maker = theirs.Tekkenizer.from_file(path)
    made = Tokenizer(tmp_path)
    assert made.vocab_size == maker.n_words and made.bos_token_id == maker.bos_id
    assert wrong(made, lambda text: maker.encode(text, bos=False, eos=False)) == []


@pytest.mark.parametrize("by_pattern", [False, True])
@pytest.mark.parametrize("kind", TIKTOKEN)
def test_tiktoken(
    kind: tuple[str, str, str], by_pattern: bool, byte_level: hf.Tokenizer, tmp_path: Path
) -> None:
    tiktoken = package("tiktoken")
    file, model, expression = kind
    expression = expression or expression_of(file)
    ranks = ranks_of(byte_level)
    name = "other.tiktoken" if by_pattern else file
    config = {"pat_str": expression} if by_pattern else {}
    (tmp_path / name).write_text(rank_file(ranks), encoding="ascii")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model}), encoding="utf-8")
    theirs = tiktoken.Encoding(
        "trained", pat_str=expression, mergeable_ranks=ranks, special_tokens={}
    )
    composes = file.startswith("qwen") and not by_pattern

    def encode(text: str) -> list[int]:
        composed = unicodedata.normalize("NFC", text) if composes else text
        ids: list[int] = theirs.encode_ordinary(composed)
        return ids

    assert wrong(Tokenizer(tmp_path), encode) == []
