"""GGUF files of Hugging Face folders: key by key and tensor by tensor those of llama.cpp's
converter.

The converter knows a word rule by a hash of what a published vocabulary makes of a text. These
vocabularies are not published, so it is told the name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converted import converted, converted_folder, needs_converter

from mlc_llm.conversion.convert import convert_weight
from mlc_llm.conversion.gguf_fields import CLASSES
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.support.progress import no_progress
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.word_rules import RULES

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
torch = pytest.importorskip("torch", reason="the oracle extra is not installed")

import test_gemma4  # noqa: E402
import test_state_spaces  # noqa: E402
from dense_models import fields_of  # noqa: E402
from random_models import granite_hybrid, random_of  # noqa: E402
from small_models import randomized  # noqa: E402
from tiny_folders import tokenizer_files  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow, needs_converter]
TEXT = Path(__file__).resolve().parents[2] / "benchmarks" / "public_domain.txt"
VOCAB = 512
GUESSED = ("general.name", "general.size_label", "general.basename", "general.finetune")
"""What the converter makes of the folder's name and of the number of weights."""
OURS_ALONE = ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix")
"""Said always; the converter says them where the folder's files do. Where both say them they must
agree."""
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
SIX = ["sliding_attention"] * 5 + ["full_attention"]
GEMMA = {
    "num_hidden_layers": 7, "layer_types": [*SIX, SIX[0]], "sliding_window": 24,
    "query_pre_attn_scalar": 32, "tie_word_embeddings": True,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3, "attention_bias": True}, "llama-bpe"),
    "llama, positions divided": ("Llama", {"rope_parameters": LINEAR}, "smollm"),
    "llama with SentencePiece": ("Llama", {"tie_word_embeddings": True}, ""),
    "qwen 2": ("Qwen2", {}, "gpt-2"),
    "qwen 3": ("Qwen3", {"tie_word_embeddings": True}, "qwen2"),
    "gemma 3": ("Gemma3", GEMMA, ""),
}
"""The class, its config, and the word rule; none: SentencePiece."""


def byte_level(folder: Path, rule: str) -> None:
    import tokenizers as hf

    made = hf.Tokenizer(hf.models.BPE(ignore_merges=RULES[rule].takes_whole_words))
    made.pre_tokenizer, made.decoder = RULES[rule].cutter, hf.decoders.ByteLevel()
    if RULES[rule].normalizer is not None:
        made.normalizer = RULES[rule].normalizer
    specials = ["<|endoftext|>", "<|begin|>", "<|end|>", "<|im_start|>"]
    trainer = hf.trainers.BpeTrainer(
        vocab_size=VOCAB - 20, special_tokens=specials, show_progress=False,
        initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train([str(TEXT)], trainer)
    made.add_tokens(["<tool>", "<|looks_special|>"])
    if rule == "llama-bpe":
        made.post_processor = hf.processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 1)]
        )
    names = dict(zip(("pad_token", "bos_token", "eos_token"), specials, strict=False))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def sentencepiece_model(folder: Path) -> None:
    import sentencepiece as spm

    spm.SentencePieceTrainer.train(
        input=str(TEXT), model_prefix=str(folder / "tokenizer"), vocab_size=VOCAB - 30,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity", pad_id=0,
        bos_id=1, eos_id=2, unk_id=3, remove_extra_whitespaces=False, minloglevel=2,
        add_dummy_prefix=False,
    )  # fmt: skip
    (folder / "tokenizer.vocab").unlink()
    added = {
        "490": {"content": "<start_of_turn>", "special": True},
        "491": {"content": "▁▁▁▁▁▁▁", "special": False},
        "492": {"content": "<unused7>", "special": False},
    }
    config = {
        "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "chat_template": TEMPLATE,
        "added_tokens_decoder": added, "tokenizer_class": "GemmaTokenizer",
        "add_prefix_space": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def written(kind: str, folder: Path) -> None:
    name, more, rule = KINDS[kind]
    config_name = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, config_name)(**(SIZES | more))
    model = randomized(getattr(transformers, f"{name}ForCausalLM"), config, 0)
    model.to(torch.bfloat16).save_pretrained(folder)
    byte_level(folder, rule) if rule else sentencepiece_model(folder)


@pytest.mark.parametrize("target", ["f16", "q8_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_files_are_those_of_the_converter(tmp_path: Path, kind: str, target: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    written(kind, folder)
    made = convert_weight(
        HuggingFaceModel.open(folder), target, tmp_path / "ours.gguf", no_progress
    )
    ours, rule = GGUFFile.open(made.path), KINDS[kind][2]
    path = converted_folder(folder, tmp_path / "theirs.gguf", f"MOSTLY_{target.upper()}", rule)
    expected = GGUFFile.open(path)
    left = {key: ours.metadata[key] for key in ours.metadata if key not in GUESSED}
    right = {key: expected.metadata[key] for key in expected.metadata if key not in GUESSED}
    assert left.keys() - right.keys() <= set(OURS_ALONE)
    for key, value in right.items():
        assert left.get(key) == value, key
        assert ours.metadata.type_of(key) == expected.metadata.type_of(key), key
    assert ours.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert ours.tensors[name].kind == tensor.kind, name
        assert ours.tensors[name].shape == tensor.shape, name
        found = ours.tensors[name].data
        if name == "rope_freqs.weight":  # computed in float32 there, in float64 here
            assert np.allclose(found.view("<f4"), tensor.data.view("<f4"), rtol=1e-6, atol=0)
        else:
            assert np.array_equal(found, tensor.data), name
    text = "It's 1234 o'clock, naïve  one!\n\n\tÅngström 你好 <|im_start|><tool>"
    assert Tokenizer.from_gguf_metadata(ours.metadata).encode(text) == Tokenizer(folder).encode(
        text
    )


SIDE = ("general.file_type", "vocab_size")
"""Said always; the converter says the first one not of GPT-NeoX, and the second one here always."""


def plain_keys(file: GGUFFile) -> dict[str, Any]:
    """All but those of the tokenizer."""
    return {
        key: (file.metadata.type_of(key), file.metadata[key])
        for key in file.metadata
        if not key.startswith("tokenizer.") and not key.endswith(SIDE) and key not in GUESSED
    }


MADE: dict[str, Callable[[], Any]] = {
    **{name: partial(random_of, name) for name in CLASSES},
    "Falcon-H1 with a norm": partial(test_state_spaces.made, "falcon with a norm", 1),
    "Gemma 4, plain": partial(test_gemma4.made, "plain", 1),
    "Gemma 4, shared keys": partial(test_gemma4.made, "shared keys and values", 0),
    "Granite 4, dense": partial(granite_hybrid, "dense", 1),
    "Mamba 2, groups": partial(test_state_spaces.made, "mamba 2", 1),
    "Qwen3.5, several heads a head of keys": partial(test_state_spaces.made, "qwen 3.5", 1),
    "Qwen3.5 with experts, three of them": partial(test_state_spaces.made, "qwen 3.5 moe", 2),
}
"""Each class, and models that use more of it."""
ROUNDED = ("rope_", "ssm_a")
"""Tensors that are computed in float32 there and in float64 here, or by another power of e."""


@pytest.mark.parametrize("name", MADE)
def test_every_class_is_written_as_by_the_converter(tmp_path: Path, name: str) -> None:
    folder, model = tmp_path / "folder", MADE[name]()
    path = converted(model, folder, **fields_of(model))
    for file, text in tokenizer_files().items():
        (folder / file).write_text(text, encoding="utf-8")
    made = convert_weight(HuggingFaceModel.open(folder), "f32", tmp_path / "o.gguf", no_progress)
    ours, expected = GGUFFile.open(made.path), GGUFFile.open(path)
    assert plain_keys(ours) == plain_keys(expected)
    assert ours.tensors.keys() == expected.tensors.keys()
    for key, tensor in expected.tensors.items():
        found = ours.tensors[key]
        assert found.kind == tensor.kind
        assert np.squeeze(np.empty(found.shape)).shape == np.squeeze(np.empty(tensor.shape)).shape
        if key.startswith(ROUNDED) or key.endswith(ROUNDED):
            assert np.allclose(found.data.view("<f4"), tensor.data.view("<f4"), rtol=1e-6, atol=0)
        else:
            assert np.array_equal(found.data, tensor.data), key
