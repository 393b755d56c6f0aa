"""Engines on Hugging Face folders: the same answers as from a GGUF file, and what is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_folders import INDEX, Folder, Stored, folder_of

from mlc_llm.cli.__main__ import main
from mlc_llm.compiler.jit import packed_weights, prepare
from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import MLCError, ModelFileError, ModelNotFound, UnsupportedModel
from mlc_llm.library.metadata import PARAMS_FILE
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.support import content
from mlc_llm.support.files import cache_root
from mlc_llm.testing.byte_tokenizer import CHAT_TEMPLATE, END_OF_TEXT, IM_END
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

CONFIG = "tokenizer_config.json"
HALF = TinyShape(heads=4, kv_heads=2, tied_head=False)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf", kinds={"": "F32"})


@pytest.fixture
def folder(gguf: Path) -> Folder:
    return folder_of(gguf)


@pytest.mark.one_of(3)
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_packed_weights_are_those_of_the_gguf_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shards: int
) -> None:
    monkeypatch.setattr(content, "SETTLED_S", -1.0)
    shape = HALF if shards > 1 else TinyShape()
    file = write_tiny_model(tmp_path / "kind.gguf", kinds={"": kind}, shape=shape)
    path = folder_of(file).write(tmp_path / "folder", shards)
    opened = HuggingFaceModel.open(path)
    found = prepare(opened, "portable")
    expected = prepare(GGUFModel.open(file), "portable")
    assert found.library == expected.library and found.weights != expected.weights
    weights = [(one.weights / PARAMS_FILE).read_bytes() for one in (found, expected)]
    assert weights[0] == weights[1]
    assert packed_weights(opened, "portable") == found.weights
    assert prepare(opened, "portable").weights == found.weights


def test_answers_are_those_of_the_gguf_file(tmp_path: Path, gguf: Path, folder: Folder) -> None:
    path = folder.write(tmp_path / "folder")
    greedy = GenerationConfig(temperature=0.0, max_tokens=64)
    answers = [
        SyncMLCEngine(str(model)).generate(["the rain in", "x"], greedy)[0]
        for model in (path, gguf)
    ]
    assert answers[0] == answers[1] and len(answers[0][1][0]) > 8


def test_generate_and_chat_on_a_folder(
    tmp_path: Path,
    gguf: Path,
    folder: Folder,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = folder.write(tmp_path / "folder")
    shown = []
    for model in (path, gguf):
        words = ["--model", str(model), "--temperature", "0", "--max-tokens", "8"]
        for command in (["generate", "hello"], ["chat"]):
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
            assert main([*command, *words]) == 0
            shown.append(capsys.readouterr().out)
    assert shown[:2] == shown[2:] and all(shown)


def test_a_bundle_of_a_folder(tmp_path: Path, gguf: Path, folder: Folder) -> None:
    folder.config["eos_token_id"] = [END_OF_TEXT, 10**6]
    folder.texts["generation_config.json"] = json.dumps({"temperature": 0.5, "top_k": 7})
    bundle, same = open_model(str(folder.write(tmp_path / "mine"))), open_model(str(gguf))
    assert bundle.name == "mine" and bundle.context_window == same.context_window
    assert bundle.stop_token_ids == {END_OF_TEXT, IM_END}
    assert bundle.defaults == GenerationConfig(temperature=0.5, top_k=7)
    assert isinstance(bundle.chat_template, ChatTemplate)
    assert isinstance(same.chat_template, ChatTemplate)
    for name in ("source", "bos", "eos"):
        assert getattr(bundle.chat_template, name) == getattr(same.chat_template, name)
    text = "the answer is <|im_end|> 42 é"
    for special in (True, False):
        ids = bundle.tokenizer.encode(text, special=special)
        assert ids == same.tokenizer.encode(text, special=special)


@pytest.mark.parametrize(
    ("texts", "source"),
    [
        ({CONFIG: "{}"}, None),
        ({CONFIG: '{"chat_template": [{"name": "tool", "template": "t"}]}'}, None),
        ({CONFIG: '{"chat_template": [{"name": "default", "template": "d"}]}'}, "d"),
        ({CONFIG: "{}", "chat_template.json": '{"chat_template": "j"}'}, "j"),
        ({"chat_template.jinja": "own"}, "own"),
        ({"chat_template.json": '{"chat_template": "j"}'}, CHAT_TEMPLATE),
    ],
)
def test_where_a_chat_template_may_lie(
    tmp_path: Path, folder: Folder, texts: dict[str, str], source: str | None
) -> None:
    folder.texts |= texts
    found = open_model(str(folder.write(tmp_path / "folder"))).chat_template
    assert (found.source if isinstance(found, ChatTemplate) else None) == source


def test_a_gguf_file_in_the_folder_comes_first(tmp_path: Path, gguf: Path, folder: Folder) -> None:
    path = folder.write(tmp_path / "folder")
    gguf.rename(path / "tiny.gguf")
    assert isinstance(open_model(str(path)).files, GGUFModel)


def refuses(path: Path, error: type[MLCError], words: str) -> None:
    """In one line, and nothing is left in the cache."""
    with pytest.raises(error) as caught:
        open_model(str(path))
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not cache_root().exists()


Q = "model.layers.1.self_attn.q_proj.weight"


def without(folder: Folder) -> None:
    del folder.tensors[Q]


def more(folder: Folder) -> None:
    folder.tensors["model.layers.0.self_attn.q_proj.bias"] = folder.tensors["model.norm.weight"]


def one_more_layer(folder: Folder) -> None:
    folder.tensors[Q.replace("1", "2")] = folder.tensors[Q]


def of_another_shape(folder: Folder) -> None:
    one = folder.tensors[Q]
    folder.tensors[Q] = replace(one, shape=(32, 128))


def of_another_type(folder: Folder) -> None:
    folder.tensors[Q] = replace(folder.tensors[Q], kind="I32")


def swapped(folder: Folder) -> None:
    down, up = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("down", "up"))
    folder.tensors[down], folder.tensors[up] = folder.tensors[up], folder.tensors[down]


def wider(folder: Folder) -> None:
    folder.config["intermediate_size"] *= 2


def deeper(folder: Folder) -> None:
    folder.config["num_hidden_layers"] = 10**9


def another_class(folder: Folder) -> None:
    folder.config["architectures"] = ["OtherForCausalLM"]


def quantized(folder: Folder) -> None:
    folder.config["quantization_config"] = {"quant_method": "bitsandbytes"}


def no_vocabulary(folder: Folder) -> None:
    del folder.config["vocab_size"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (without, ModelFileError, f"there is no tensor {Q}"),
        (more, UnsupportedModel, "tensor model.layers.0.self_attn.q_proj.bias is not part"),
        (one_more_layer, UnsupportedModel, "tensor model.layers.2.self_attn.q_proj.weight is not"),
        (of_another_shape, ModelFileError, f"tensor {Q} has shape (32, 128), expected (64, 64)"),
        (of_another_type, UnsupportedModel, f"tensor {Q} of type I32; supported: F32, F16, BF16"),
        (swapped, ModelFileError, "tensor model.layers.0.mlp.up_proj.weight has shape (64, 96)"),
        (wider, ModelFileError, "has shape (96, 64), expected (192, 64)"),
        (deeper, ModelFileError, "num_hidden_layers is 1000000000"),
        (another_class, UnsupportedModel, "architecture 'OtherForCausalLM' is not supported"),
        (quantized, UnsupportedModel, "quantization_config.quant_method is 'bitsandbytes'; supp"),
        (no_vocabulary, ModelFileError, "vocab_size is None"),
    ],
)
def test_folders_that_are_refused(
    tmp_path: Path,
    folder: Folder,
    change: Callable[[Folder], None],
    error: type[MLCError],
    words: str,
) -> None:
    change(folder)
    refuses(folder.write(tmp_path / "folder", 2), error, words)


def swap_shards(path: Path) -> None:
    first, second = sorted(path.glob("*.safetensors"))
    first.rename(path / "x")
    second.rename(first)
    (path / "x").rename(second)


def lead_outside(path: Path) -> None:
    places = json.loads((path / INDEX).read_text())["weight_map"]
    places[Q] = "../other.safetensors"
    (path / INDEX).write_text(json.dumps({"weight_map": places}))


def only_a_pickle(path: Path) -> None:
    (path / INDEX).unlink()
    for one in path.glob("*.safetensors"):
        one.unlink()
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def cut(path: Path) -> None:
    shard = min(path.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (swap_shards, ModelFileError, "is not in model-0000"),
        (lead_outside, ModelFileError, f"weight_map.'{Q}' = '../other.safetensors' should be"),
        (only_a_pickle, UnsupportedModel, "only pytorch_model.bin, a pickle, which is never read"),
        (cut, ModelFileError, "not a sound safetensors file"),
        (lambda p: (p / "tokenizer.json").unlink(), ModelNotFound, "cannot find any tokenizer"),
        (lambda p: (p / "config.json").write_text("[]"), ModelFileError, "hold a JSON object"),
        (lambda p: (p / CONFIG).write_text('{"chat_template": 3}'), ModelFileError, "be a text or"),
        (lambda p: (p / "chat_template.jinja").write_bytes(b"\xff"), ModelFileError, "jinja: "),
    ],
)
def test_files_that_are_refused(
    tmp_path: Path,
    folder: Folder,
    change: Callable[[Path], object],
    error: type[MLCError],
    words: str,
) -> None:
    path = folder.write(tmp_path / "folder", 2)
    change(path)
    refuses(path, error, words)


def test_weights_that_are_no_numbers(tmp_path: Path, folder: Folder) -> None:
    values = folder.tensors[Q].data.view(np.float32).copy()
    values[5] = np.nan
    folder.tensors[Q] = Stored("F32", (64, 64), values.view(np.uint8))
    opened = HuggingFaceModel.open(folder.write(tmp_path / "folder"))
    with pytest.raises(ModelFileError, match=f"tensor {Q} holds NaN"):
        prepare(opened, "portable")


def test_a_config_that_is_changed_later_makes_other_weights(tmp_path: Path, folder: Folder) -> None:
    path = folder.write(tmp_path / "folder")
    first = prepare(HuggingFaceModel.open(path), "portable")
    folder.config["rope_theta"] = 20_000.0
    (path / "config.json").write_text(json.dumps(folder.config))
    opened = HuggingFaceModel.open(path)
    assert prepare(opened, "portable").weights != first.weights
    (path / "config.json").write_text(json.dumps(folder.config) + " ")
    with pytest.raises(ModelFileError, match=r"config\.json was changed while it was opened"):
        prepare(opened, "portable")
