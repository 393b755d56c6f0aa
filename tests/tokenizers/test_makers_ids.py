"""Token ids of real vocabularies equal those of the models' own tokenizers."""

from __future__ import annotations

from pathlib import Path

import makers_vocabularies
import pytest

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.from_gguf import flat_form

pytestmark = pytest.mark.slow

WITH_IDS = (
    "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2",
    "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
WITHOUT = ("aquila", "baichuan", "gpt-neox", "nomic-bert-moe")
FLAT = tuple(
    name
    for name in WITH_IDS
    # command-r's file writes some tokens as they are, the others are of another kind
    if name not in {"bert-bge", "command-r", "gemma-4", "llama-spm", "phi-3"}
)


@pytest.fixture(scope="module")
def vocabularies() -> Path:
    try:
        return makers_vocabularies.folder()
    except makers_vocabularies.CannotFetch as error:
        pytest.skip(f"no vocabularies with known ids: {error}")


def test_every_vocabulary_is_tried(vocabularies: Path) -> None:
    names = {path.stem.removeprefix("ggml-vocab-") for path in vocabularies.glob("*.gguf")}
    assert names == {*WITH_IDS, *WITHOUT}


@pytest.mark.parametrize("name", WITH_IDS)
def test_ids_are_the_makers(vocabularies: Path, name: str) -> None:
    path = vocabularies / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer.from_gguf_metadata(GGUFFile.open(path).metadata)
    cases = makers_vocabularies.cases(path)
    assert len(cases) >= 46
    wrong = [(text, got, ids) for text, ids in cases if (got := tokenizer.encode(text)) != ids]
    assert wrong == []


def test_a_chat_of_phi_3(vocabularies: Path) -> None:
    metadata = GGUFFile.open(vocabularies / "ggml-vocab-phi-3.gguf").metadata
    made, text = Tokenizer.from_gguf_metadata(metadata), "<|user|>\nHello<|end|>\n<|assistant|>\n"
    ids = [32010, 15043, 32007, 32001]
    assert made.encode(text, special=True) == ids
    assert made.encode_segments(made.split_control(text)) == ids


@pytest.mark.parametrize("name", FLAT)
def test_ids_out_of_the_flat_form_are_the_makers(vocabularies: Path, name: str) -> None:
    path = vocabularies / f"ggml-vocab-{name}.gguf"
    metadata = GGUFFile.open(path).metadata
    data = flat_form(metadata)
    assert data is not None
    words = Tokenizer.from_flat(memoryview(data), metadata)._parts.words
    assert words is not None
    cases = makers_vocabularies.cases(path)
    known = [(words.encode([text]), [ids]) for text, ids in cases if words.can_cut(text)]
    found = [one for one in known if one[0] is not None]
    assert len(found) >= 30 and [one for one in found if one[0] != one[1]] == []


@pytest.mark.parametrize("name", WITHOUT)
def test_a_text_survives_where_no_ids_are_known(vocabularies: Path, name: str) -> None:
    path = vocabularies / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer.from_gguf_metadata(GGUFFile.open(path).metadata)
    text = "Three (3) words, and 日本: it's fine!"
    assert tokenizer.decode(tokenizer.encode(text)) == text
