"""Which files of a repository are fetched."""

from __future__ import annotations

import pytest

from mlc_llm.errors import InvalidField, ModelNotFound
from mlc_llm.support.hub_address import Address, parse_address
from mlc_llm.support.hub_choice import choose

TEXTS = ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"]
CODE = ["run.py", "pytorch_model.bin", "model.pt", "weights.pkl", "../evil.json", ".git/config"]
QUANTS = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "m-UD-Q2_K_XL.gguf", "mmproj-F16.gguf"]
BIG = ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]


def chosen(address: str, *names: str) -> tuple[str, set[str]]:
    model, files = choose([*names, *CODE], parse_address(address))
    assert len(files) == len(set(files))
    return model, set(files)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("HF://user/repo", Address("user", "repo")),
        ("hf://user/repo/", Address("user", "repo")),
        ("https://huggingface.co/user/repo", Address("user", "repo")),
        ("HF://user/repo:Q4_K_M", Address("user", "repo", tag="Q4_K_M")),
        ("HF://user/repo:a.gguf", Address("user", "repo", file="a.gguf")),
        ("HF://user/repo/b/a.gguf", Address("user", "repo", file="b/a.gguf")),
        ("https://huggingface.co/u/repo/blob/main/a.gguf", Address("u", "repo", file="a.gguf")),
    ],
)  # fmt: skip
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["HF://user", "HF://../repo", "HF://user/..", "HF://a/b/../c.gguf", "https://example.org/a/b",
     "HF://user/repo/weights.bin", "HF://user/re\npo", "file:///a.gguf", "HF://user/repo:", "HF://",
     "HF://user/repo:a:b", "HF://user/repo:a/b"],
)  # fmt: skip
def test_other_addresses(text: str) -> None:
    with pytest.raises(InvalidField, match="model = "):
        parse_address(text)


def test_one_gguf_file() -> None:
    texts = {"generation_config.json", "tokenizer.json", "chat_template.jinja"}
    names = [*TEXTS, "model.safetensors", "mmproj-m.gguf", "m.gguf"]
    assert chosen("HF://u/r", *names) == ("m.gguf", {"m.gguf", *texts})


def test_a_split_file() -> None:
    assert chosen("HF://u/r", *BIG) == (BIG[0], set(BIG))
    assert chosen(f"HF://u/r/{BIG[0]}", *BIG, *QUANTS) == (BIG[0], set(BIG))


@pytest.mark.parametrize(
    ("tag", "file"),
    [("Q4_K_M", QUANTS[0]), ("q8_0", QUANTS[2]), ("UD-Q2_K_XL", QUANTS[3]), ("BF16", BIG[0]),
     ("Q2_K_XL", QUANTS[3])],
)  # fmt: skip
def test_a_tag_names_one_of_many(tag: str, file: str) -> None:
    assert chosen(f"HF://u/r:{tag}", *QUANTS, *BIG)[0] == file


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("HF://u/r", "5 models there, name one, HF://u/r:ENDING or HF://u/r/FILE; there are BF16/"),
        ("HF://u/r:Q4", "no .gguf file with this ending; there are BF16/m-BF16-00001-of-00002.ggu"),
        ("HF://u/r/o.gguf", "no such file in the repository; there are "),
    ],
)
def test_what_there_is_is_listed(address: str, said: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        chosen(address, *QUANTS, *BIG)
    assert said in str(caught.value) and QUANTS[2] in str(caught.value)
    assert "mmproj" not in str(caught.value)


def test_two_files_that_fit_a_tag() -> None:
    with pytest.raises(ModelNotFound, match=r"2 models there.* a-Q4_0.gguf, b-Q4_0.gguf"):
        chosen("HF://u/r:Q4_0", "a-Q4_0.gguf", "b-Q4_0.gguf", "c-Q8_0.gguf")


def test_a_folder_of_safetensors() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index, other = "model.safetensors.index.json", "consolidated.safetensors"
    names = [
        *TEXTS,
        *shards,
        index,
        other,
        "model.fp16.safetensors",
        "tokenizer.model",
        "data.json",
        "qwen.tiktoken",
    ]
    needed = {*TEXTS, *shards, index, "tokenizer.model", "qwen.tiktoken"}
    assert chosen("HF://u/r", *names) == ("config.json", needed)
    assert chosen("HF://u/r", *TEXTS, other) == ("config.json", {*TEXTS, other})


def test_a_folder_of_sentence_transformers() -> None:
    names = [
        *("config.json", "model.safetensors", "modules.json", "1_Pooling/config.json"),
        *("2_Dense/config.json", "2_Dense/model.safetensors", "3_Dense/model.safetensors"),
        *("sentence_bert_config.json", "sentence_xlm-roberta_config.json"),
    ]
    others = [
        "config_sentence_transformers.json",
        *("2_Dense/pytorch_model.bin", "2_Dense/run.py", "0_Transformer/model.safetensors"),
        *("1_Pooling/inner/config.json", "onnx/config.json", "onnx/model.safetensors"),
    ]
    assert chosen("HF://u/r", *names, *others) == ("config.json", set(names))
    plain = {"config.json", "model.safetensors"}
    without = [name for name in names if name != "modules.json"]
    assert chosen("HF://u/r", *without, *others) == ("config.json", plain)


def test_a_folder_of_a_model_with_images() -> None:
    names = ["config.json", "model.safetensors", "preprocessor_config.json"]
    names += ["processor_config.json"]
    assert chosen("HF://u/r", *names, "video_config.json") == ("config.json", set(names))
    assert chosen("HF://u/r:m", *names, "m.gguf") == ("m.gguf", {"m.gguf"})


def test_a_folder_of_upstream() -> None:
    names = ["mlc-chat-config.json", "ndarray-cache.json", "params_shard_0.bin", "tokenizer.json"]
    assert chosen("HF://u/r", *names, "m.gguf") == ("mlc-chat-config.json", set(names))


@pytest.mark.parametrize("names", [[], ["config.json"], ["model.safetensors"], ["mmproj.gguf"]])
def test_no_model(names: list[str]) -> None:
    with pytest.raises(ModelNotFound, match=r"HF://u/r: no model there: neither a .gguf file"):
        chosen("HF://u/r", *names)


def test_the_template_for_tools_of_a_folder() -> None:
    other = "additional_chat_templates/tool_use.jinja"
    names = [*TEXTS, "model.safetensors", other, "additional_chat_templates/rag.jinja"]
    assert chosen("HF://u/r", *names)[1] == {*TEXTS, "model.safetensors", other}
