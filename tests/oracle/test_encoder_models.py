"""Random small encoders, through the folders of Transformers and as llama.cpp's converter
writes them, against Transformers itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_tools import computed, runner_of, runner_of_plan

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

from converted import converted, needs_converter  # noqa: E402
from encoder_models import (  # noqa: E402
    CONTEXT,
    HEAD_DIMS,
    PAIRS,
    FirstNomic,
    cosine,
    exact_hidden,
    exact_score,
    random_decoder,
    random_encoder,
    texts_of,
)
from server_harness import running  # noqa: E402
from tiny_encoders import TOKENS  # noqa: E402
from tiny_folders import tokenizer_files  # noqa: E402

from mlc_llm import MLCEngine  # noqa: E402
from mlc_llm.errors import UnsupportedModel  # noqa: E402
from mlc_llm.model_files.huggingface import HuggingFaceModel  # noqa: E402
from mlc_llm.models.registry import ENCODERS  # noqa: E402
from mlc_llm.runtime.encoder_runner import EncoderRunner  # noqa: E402
from mlc_llm.serve.config import EngineConfig  # noqa: E402
from mlc_llm.serve.server.pool.openers import EngineOpener  # noqa: E402
from mlc_llm.tokenizers import Tokenizer  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
LEAST = 0.99999
"""Cosine."""
WORST = {"reference": 1e-5, None: 5e-3}
"""Of the largest number, and of a score; this machine's kernels keep keys and values in float16."""
CLASSES = [row.config for row in ENCODERS]
SEEDS = range(len(HEAD_DIMS))


@pytest.mark.parametrize("kernels", ["reference", None])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CLASSES)
def test_folders_equal_transformers(
    tmp_path: Path, name: str, seed: int, kernels: str | None
) -> None:
    model = random_encoder(name, seed)
    model.save_pretrained(tmp_path / "folder")
    runner = runner_of(tmp_path / "folder", tmp_path, kernels)
    check(runner, model, seed, WORST[kernels])


@needs_converter
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CLASSES)
def test_gguf_files_equal_transformers(tmp_path: Path, name: str, seed: int) -> None:
    """The converter drops a layer of BERT's scores, which is said, and knows no Nomic's."""
    model = random_encoder(name, seed)
    if name == f"NomicBert{PAIRS}":
        with pytest.raises(AssertionError, match=f"'{name}' not supported"):
            converted(model, tmp_path / "folder")
        return
    path = converted(FirstNomic(model) if "Nomic" in name else model, tmp_path / "folder")
    if name == f"Bert{PAIRS}":
        with pytest.raises(UnsupportedModel, match=r"no cls\.weight"):
            runner_of(path, tmp_path, "reference")
        return
    check(runner_of(path, tmp_path, "reference"), model, seed, WORST["reference"])
    of_folder = runner_of(tmp_path / "folder", tmp_path / "of-folder", "reference")
    check(of_folder, model, seed, WORST["reference"])


def check(runner: EncoderRunner, model: Any, seed: int, worst: float) -> None:
    texts = texts_of(seed)
    exact = [exact_hidden(model, text) for text in texts]
    poolings = {"mean": [x.mean(axis=0) for x in exact], "cls": [x[0] for x in exact]}
    poolings["last_token"] = [x[-1] for x in exact]
    for runner.pooling, vectors in poolings.items():  # type: ignore[assignment]
        for found, one in zip(computed(runner, texts), vectors, strict=True):
            assert cosine(found, one) >= LEAST, runner.pooling
            assert np.abs(np.asarray(found) - one).max() <= worst * np.abs(one).max()
    if type(model).__name__.endswith(PAIRS):
        for text, (score,) in zip(texts[1:], computed(runner, texts[1:], second_at=3), strict=True):
            assert score == pytest.approx(exact_score(model, text, 3), abs=10 * worst)


def test_dense_modules_of_a_gemma(tmp_path: Path) -> None:
    """As sentence-transformers compute them: the mean, then each matrix."""
    from safetensors.torch import save_file

    model, folder = random_encoder("Gemma3TextModel", 0), tmp_path / "folder"
    model.save_pretrained(folder)
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    layers, columns = [], model.config.hidden_size
    for i, rows in enumerate((40, 24)):  # kernels pad both
        layers.append(torch.nn.Linear(columns, rows, bias=False))
        columns, path = rows, f"{i + 2}_Dense"
        (folder / path).mkdir()
        stated = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
        (folder / path / "config.json").write_text(json.dumps(stated))
        modules.append({"type": "sentence_transformers.models.Dense", "path": path})
        tensors = {"linear.weight": layers[-1].weight.detach()}
        save_file(tensors, str(folder / path / "model.safetensors"))
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    found = HuggingFaceModel.open(folder)
    for kernels in (None, "reference"):
        runner = runner_of_plan(found.plan(), found.tensors, tmp_path, kernels)
        for text, vector in zip(texts_of(0), computed(runner, texts_of(0)), strict=True):
            exact = torch.tensor(exact_hidden(model, text).mean(axis=0), dtype=torch.float32)
            exact = torch.nn.Sequential(*layers)(exact).detach().numpy()
            assert cosine(vector, exact) >= LEAST


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path / "cache"))
        yield


@needs_converter
@pytest.mark.parametrize("kernels", ["reference", None])
@pytest.mark.parametrize("seed", SEEDS)
def test_decoders_give_the_vector_of_the_last_token(
    tmp_path: Path, cache: None, seed: int, kernels: str | None
) -> None:
    """Through the engine, from both files."""
    model = random_decoder("Qwen3Model", seed)
    path = converted(model, tmp_path / "files")
    model.save_pretrained(tmp_path / "folder")
    for name, text in tokenizer_files().items():
        (tmp_path / "folder" / name).write_text(text, encoding="utf-8")
    texts = texts_of(seed)
    for one in (path, tmp_path / "folder"):
        config = {"pooling": "last_token"} | ({} if kernels is None else {"kernels": kernels})
        with MLCEngine(str(one), engine_config=config) as engine:
            answer = engine.embeddings.create(input=texts)
        assert answer.pooling == "last_token"
        for text, found in zip(texts, answer.data, strict=True):
            assert cosine(found.embedding, exact_hidden(model, text)[-1]) >= LEAST


TEXTS = ["The cat sat on the mat.", "a dog", "Dogs, sleeping!", "x " * (CONTEXT // 2)]


@pytest.mark.parametrize("kernels", ["reference", None])
def test_texts_equal_those_of_transformers(
    tmp_path: Path, cache: None, kernels: str | None
) -> None:
    """From the text to the vector, and the tokens of a pair."""
    folder, model = tmp_path / "folder", random_encoder(f"Bert{PAIRS}", 0)
    model.save_pretrained(folder)
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS), encoding="utf-8")
    theirs = transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"))
    theirs.save_pretrained(folder)
    config = {} if kernels is None else {"kernels": kernels}
    with MLCEngine(str(folder), engine_config=config) as engine:
        found = [one.embedding for one in engine.embeddings.create(input=TEXTS).data]
    for text, vector in zip(TEXTS, found, strict=True):
        exact = exact_hidden(model, theirs(text)["input_ids"]).mean(axis=0)
        assert cosine(vector, exact) >= LEAST, text
    check_pair(Tokenizer(folder), theirs, has_types=True)


@pytest.mark.parametrize("kernels", ["reference", None])
def test_reranking_with_a_modern_bert(tmp_path: Path, cache: None, kernels: str | None) -> None:
    """From the texts to the scores of pairs, with the template of its tokenizer.json."""
    import tokenizers as hf

    model, folder = random_encoder(f"ModernBert{PAIRS}", 1), tmp_path / "folder"
    model.save_pretrained(folder)
    alphabet = sorted(hf.pre_tokenizers.ByteLevel.alphabet())
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    vocabulary = {text: i for i, text in enumerate([*special, *alphabet])}
    made = hf.Tokenizer(hf.models.BPE(vocabulary, []))
    made.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = hf.decoders.ByteLevel()
    made.add_special_tokens(special)
    made.post_processor = hf.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )  # fmt: skip
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        unk_token="[UNK]", mask_token="[MASK]",
    )  # fmt: skip
    theirs.save_pretrained(folder)
    config = EngineConfig(mode="server", kernels=kernels)
    query, documents = "where is the cat?", ["The cat sat on the mat.", "a dog", "cats " * 12]
    with running(models=[str(folder)], opener=EngineOpener("cpu", config)) as server:
        body: dict[str, Any] = {"model": "default", "query": query, "documents": documents}
        found = server.call("POST", "/v1/rerank", body).json["results"]
        body = {"model": "default", "input": documents}
        vectors = server.call("POST", "/v1/embeddings", body).json["data"]
    assert sorted(one["index"] for one in found) == [0, 1, 2]
    for one in found:
        ids = theirs(query, documents[one["index"]])["input_ids"]
        exact = 1 / (1 + np.exp(-exact_score(model, ids, 1)))
        assert one["relevance_score"] == pytest.approx(exact, abs=WORST[kernels])
    for text, vector in zip(documents, vectors, strict=True):
        mean = exact_hidden(model, theirs(text)["input_ids"]).mean(axis=0)
        assert cosine(vector["embedding"], mean) >= LEAST, text


def test_pairs_of_xlm_roberta(tmp_path: Path) -> None:
    """The template that its tokenizer.json has."""
    import tokenizers as hf

    rows = [(text, 0.0) for text in ("<s>", "<pad>", "</s>", "<unk>")]
    rows += [(text, -1.0) for text in ("\u2581", "\u2581the", "\u2581cat", "s", "a", "t")]
    made = hf.Tokenizer(hf.models.Unigram(rows, unk_id=3))
    made.pre_tokenizer, made.decoder = hf.pre_tokenizers.Metaspace(), hf.decoders.Metaspace()
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    made.post_processor = hf.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )  # fmt: skip
    made.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "XLMRobertaTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=made)
    check_pair(Tokenizer(tmp_path), theirs, has_types=False)


def check_pair(ours: Tokenizer, theirs: Any, *, has_types: bool) -> None:
    first, second = "the cat", "cats"
    ids, second_at = ours.frame.pair(ours.encode(first), ours.encode(second))
    exact = theirs(first, second, return_token_type_ids=True)
    assert ids == exact["input_ids"]
    assert ours.frame.around(ours.encode(first)) == theirs(first)["input_ids"]
    if has_types:
        types = [int(i >= second_at) for i in range(len(ids))]
        assert types == exact["token_type_ids"]
