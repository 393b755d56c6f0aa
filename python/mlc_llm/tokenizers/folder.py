"""Finds the tokenizer of a folder. Of several files, the first of these is taken:

1. tokenizer.json (the `tokenizers` library's format);
2. tekken.json (Mistral's);
3. tokenizer.model, spiece.model, tiktoken.model (SentencePiece's, or tiktoken's text) or
   sentencepiece.bpe.model (XLM-RoBERTa's);
4. one file `*.tiktoken`;
5. vocab.json with merges.txt (byte-level BPE);
6. vocab.txt (WordPiece);
7. rwkv_vocab_v20230424.txt (the longest token that fits).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mlc_llm.errors import ModelNotFound, UnsupportedModel
from mlc_llm.tokenizers.bpe_files import parts_of_bpe_files
from mlc_llm.tokenizers.folder_config import FolderConfig
from mlc_llm.tokenizers.frame import Frame
from mlc_llm.tokenizers.longest_match import FILE as RWKV_FILE
from mlc_llm.tokenizers.longest_match import parts_of_rwkv_file
from mlc_llm.tokenizers.parts import Parts
from mlc_llm.tokenizers.spm_file import FAIRSEQ_FILE, parts_of_model_file
from mlc_llm.tokenizers.tekken_file import parts_of_tekken
from mlc_llm.tokenizers.tiktoken_file import is_tiktoken, parts_of_tiktoken
from mlc_llm.tokenizers.tokenizer_json import parts_of_json
from mlc_llm.tokenizers.wordpiece_file import parts_of_word_list

JSON = "tokenizer.json"
_MODELS = ("tokenizer.model", "spiece.model", "tiktoken.model", FAIRSEQ_FILE)
_OTHER_KINDS = ("vocab.json", "merges.txt")
TEKKEN = "tekken.json"
KNOWN = (
    f"{JSON}, {TEKKEN}, {', '.join(_MODELS)}, *.tiktoken, vocab.json with merges.txt, "
    f"vocab.txt, or {RWKV_FILE}"
)


def parts_of_folder(folder: Path) -> Parts:
    """Raises `ModelNotFound`, `UnsupportedModel`, or `ModelFileError`, which names the file."""
    config = FolderConfig.read(folder)
    if (folder / JSON).is_file():
        return parts_of_json(folder / JSON, config)
    if config.lowercases:
        words = "do_lower_case of sentence-transformers is supported with a"
        raise UnsupportedModel(f"{folder}: {words} {JSON} alone")
    parts = _of_other_files(folder, config)
    if config.flag("add_eos_token") is not True or parts.frame or parts.eos_token_id is None:
        return parts
    bos, end = parts.bos_token_id, (parts.eos_token_id,)
    start = (bos,) if parts.add_bos and bos is not None else ()
    return replace(parts, frame=Frame(start, end + start, end))


def _of_other_files(folder: Path, config: FolderConfig) -> Parts:
    if (folder / TEKKEN).is_file():
        return parts_of_tekken(folder / TEKKEN, config)
    for path in (folder / name for name in _MODELS):
        if path.is_file():
            build = parts_of_tiktoken if is_tiktoken(path) else parts_of_model_file
            return build(path, config)
    ranks = sorted(folder.glob("*.tiktoken"))
    if len(ranks) == 1:
        return parts_of_tiktoken(ranks[0], config)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return parts_of_bpe_files(folder, config)
    for name, read in {"vocab.txt": parts_of_word_list, RWKV_FILE: parts_of_rwkv_file}.items():
        if (folder / name).is_file():
            return read(folder / name, config)
    raise _missing(folder, [path.name for path in ranks])


def _missing(folder: Path, ranks: list[str]) -> ModelNotFound | UnsupportedModel:
    other = ranks + [name for name in _OTHER_KINDS if (folder / name).is_file()]
    if other:
        return UnsupportedModel(f"{folder}: no tokenizer in {', '.join(other)}; known are {KNOWN}")
    return ModelNotFound(f"{folder}: cannot find any tokenizer ({KNOWN})")
