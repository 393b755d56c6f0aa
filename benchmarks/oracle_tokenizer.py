"""The tokenizer oracle: token ids and rendered chats as Transformers makes them.

    python benchmarks/oracle_tokenizer.py                     # write what the tests compare with
    python benchmarks/oracle_tokenizer.py --model FILE.gguf   # compare our ids for any GGUF file

Needs the `oracle` extra. The answers are fingerprints of token ids for the corpus in
`tests/tokenizers`, and texts for the conversations in `tests/conversation_template`; the tests
need neither Transformers nor torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "tokenizers"), str(TESTS / "conversation_template")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gguf  # noqa: E402 - the paths above come first
from template_cases import RENDERED, TEMPLATES, conversations  # noqa: E402
from tokenizer_cases import ANSWERS, CASES, Case, corpus, digests  # noqa: E402
from tokenizers import normalizers, pre_tokenizers  # noqa: E402
from tokenizers.pre_tokenizers import ByteLevel, Digits  # noqa: E402
from transformers import AutoTokenizer, PreTrainedTokenizerBase  # noqa: E402

from mlc_llm.loader.gguf import GGUFFile  # noqa: E402
from mlc_llm.support.model_source import default_model_path  # noqa: E402
from mlc_llm.tokenizers import Tokenizer  # noqa: E402


def oracle_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that Transformers reads from a GGUF file, corrected to the model's own
    tokenizer.json. Transformers ignores `tokenizer.ggml.pre`, and it confuses the prefix of a newer
    SentencePiece tokenizer with Llama's."""
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    metadata = GGUFFile.open(path).metadata
    backend, pre = tokenizer.backend_tokenizer, metadata.get("tokenizer.ggml.pre")
    if metadata["tokenizer.ggml.model"] == "gpt2":
        if pre == "smollm":
            steps = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
            backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        elif pre == "qwen2":
            backend.normalizer = normalizers.NFC()
        elif pre in ("llama-bpe", "tekken"):
            backend.model.ignore_merges = True
    elif metadata["general.architecture"] == "llama":
        backend.pre_tokenizer = None
        prefix, space = normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")
        backend.normalizer = normalizers.Sequence([prefix, space])
    return tokenizer


def oracle_ids(path: Path, texts: Sequence[str], *, plain: bool) -> list[list[int]]:
    """Token ids of `oracle_tokenizer`, without begin-of-text."""
    tokenizer = oracle_tokenizer(path)
    options = {"add_special_tokens": False, "split_special_tokens": plain}
    return [list(tokenizer.encode(text, **options)) for text in texts]


def oracle_answers(case: Case, default_model: Mapping[str, object]) -> list[list[int]]:
    """The same for a tokenizer that exists only as metadata."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.gguf"
        write_gguf(path, case.metadata(default_model))
        return oracle_ids(path, case.texts, plain=case.plain)


def write_gguf(path: Path, metadata: Mapping[str, object]) -> None:
    """A GGUF file without tensors."""
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif key != "general.architecture":
            writer.add_string(key, value)
    _add_sizes(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _add_sizes(writer: gguf.GGUFWriter) -> None:
    """Transformers reads the model's config before the tokenizer."""
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)


def oracle_renderings() -> dict[str, list[str | None]]:
    """Each template with each conversation; None where Transformers raises."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def one(source: str, conversation: Mapping[str, object]) -> str | None:
        try:
            texts, _ = render_jinja_template(
                [conversation["messages"]],
                tools=conversation.get("tools"),
                chat_template=source,
                add_generation_prompt=conversation.get("add_generation_prompt", True),
                bos_token="<s>",
                eos_token="</s>",
            )
        except Exception as error:  # a template may raise anything
            print(f"  refused: {error}")
            return None
        return str(texts[0])

    return {
        name: [one(source, conversation) for conversation in conversations()]
        for name, source in TEMPLATES.items()
    }


def write_answers() -> None:
    """Both files that the tests compare with."""
    default_model = GGUFFile.open(default_model_path()).metadata
    answers = {"transformers": version("transformers"), "tokenizers": version("tokenizers")}
    ids = {case.name: digests(oracle_answers(case, default_model)) for case in CASES}
    ANSWERS.write_text(json.dumps({**answers, "ids": ids}, indent=1) + "\n", encoding="utf-8")
    rendered = {**answers, "texts": oracle_renderings()}
    RENDERED.write_text(json.dumps(rendered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def compare(path: Path) -> int:
    """Compare our ids with Transformers' for one file. Prints counts, returns the differences."""
    ours = Tokenizer.from_gguf_metadata(GGUFFile.open(path).metadata)
    texts = corpus()
    wrong = 0
    for plain in (False, True):
        theirs = oracle_ids(path, texts, plain=plain)
        mine = ours.encode_batch(texts, special=not plain)
        bad = [i for i in range(len(texts)) if mine[i] != theirs[i]]
        kind = "control names as text" if plain else "control names as tokens"
        print(f"{path.name}, {kind}: {len(texts) - len(bad)} of {len(texts)} texts equal")
        for i in bad[:5]:
            print(f"  {texts[i][:60]!r}\n    ours   {mine[i][:20]}\n    theirs {theirs[i][:20]}")
        wrong += len(bad)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="compare this GGUF file instead of writing")
    model = parser.parse_args().model
    print(f"transformers {version('transformers')}, tokenizers {version('tokenizers')}")
    if model is None:
        write_answers()
    elif compare(model):
        sys.exit(1)


if __name__ == "__main__":
    main()
