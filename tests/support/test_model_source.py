"""From a model's name to its files."""

from __future__ import annotations

import sys
import threading
import types
from pathlib import Path

import pytest

from mlc_llm.errors import InvalidField, ModelNotFound, UserError
from mlc_llm.support import model_source
from mlc_llm.support.hub import LISTING_S
from mlc_llm.support.model_source import ModelSource, resolve_model


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_none_is_the_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("some") / "Model.Q4_1.gguf"
    monkeypatch.setattr(model_source, "packaged_file", lambda wanted, show: path)
    assert resolve_model(None) == ModelSource(path, "gguf", "Model.Q4_1")


def test_a_file(tmp_path: Path) -> None:
    path = touch(tmp_path, "m-00001-of-00002.gguf") / "m-00001-of-00002.gguf"
    assert resolve_model(str(path)) == ModelSource(path, "gguf", "m")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    path = touch(tmp_path, "a.gguf") / "a.gguf"
    assert resolve_model("~/a.gguf").path == path


def test_a_folder_with_one_model(tmp_path: Path) -> None:
    touch(tmp_path, "readme.txt", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf")
    with pytest.raises(ModelNotFound, match=r"neither a \.gguf file nor mlc-chat-config\.json"):
        resolve_model(str(tmp_path))
    touch(tmp_path, "m-00001-of-00003.gguf")
    path = tmp_path / "m-00001-of-00003.gguf"
    assert resolve_model(str(tmp_path)) == ModelSource(path, "gguf", "m")


def test_a_folder_with_a_chat_config(tmp_path: Path) -> None:
    touch(tmp_path / "Mine", "mlc-chat-config.json", "a.gguf", "b.gguf")
    folder = tmp_path / "Mine"
    assert resolve_model(str(folder)) == ModelSource(folder, "folder", "Mine")


def test_a_folder_with_several_models_names_them(tmp_path: Path) -> None:
    touch(tmp_path, "b.gguf", "a.GGUF", "c-00001-of-00002.gguf", "c-00002-of-00002.gguf")
    with pytest.raises(ModelNotFound, match=r"3 models there.* of a\.GGUF, b\.gguf, c-00001-of"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("model", ["none.gguf", "", "user/repo", "x" * 5000, "Why?\nBecause\0"])
def test_nothing_there(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        resolve_model(model)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500 and repr(model)[:50] in message


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="neither"):
        resolve_model(str(tmp_path))


class FakeHub(types.ModuleType):
    """Stands for huggingface_hub: one repository, and a count of downloads."""

    def __init__(self, names: list[str]) -> None:
        super().__init__("huggingface_hub")
        self.names = names
        self.fetched: list[list[str]] = []
        self.offline = False
        self.hanging = threading.Event()
        self.hanging.set()
        self.breaks_after: list[str] | None = None

    def HfApi(self) -> FakeHub:
        return self

    def model_info(self, repo_id: str, *, timeout: float) -> types.SimpleNamespace:
        self.hanging.wait()
        if self.offline:
            raise ConnectionError("no route to host\nand a second line")
        assert repo_id == "user/repo"
        return types.SimpleNamespace(
            siblings=[types.SimpleNamespace(rfilename=name) for name in self.names]
        )

    def snapshot_download(self, repo_id: str, *, allow_patterns: list[str], local_dir: Path) -> str:
        self.fetched.append(allow_patterns)
        if self.breaks_after is not None:
            touch(local_dir, ".cache/huggingface/m.lock", *self.breaks_after)
            raise ConnectionError("the network is gone")
        assert set(allow_patterns) <= set(self.names)
        touch(local_dir, *allow_patterns)
        return str(local_dir)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    names = ["config.json", "tokenizer.model", "run.py", "chat.jinja", "../evil.json", "m.gguf"]
    hub = FakeHub([*names, "big/w-00001-of-00002.gguf", "big/w-00002-of-00002.gguf"])
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "cache"))
    return hub


TEXTS = ["chat.jinja", "config.json", "tokenizer.model"]


@pytest.mark.parametrize("address", ["HF://user/repo", "https://huggingface.co/user/repo/"])
def test_hub_fetches_no_code_and_works_offline(address: str, hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "model_weights" / "hf" / "user" / "repo"
    source = resolve_model(address)
    assert source == ModelSource(folder / "m.gguf", "gguf", "m")
    assert hub.fetched == [[*TEXTS, "m.gguf"]]
    hub.offline = True
    assert resolve_model(address) == source
    assert len(hub.fetched) == 1
    assert not (tmp_path / "cache" / "model_weights" / "hf" / "user" / "evil.json").exists()


def test_hub_damaged_download_is_fetched_again(hub: FakeHub) -> None:
    path = resolve_model("HF://user/repo").path
    path.write_text("m")
    assert resolve_model("HF://user/repo").path.read_text() == "m.gguf"
    assert len(hub.fetched) == 2


def test_hub_file_with_its_parts(hub: FakeHub) -> None:
    source = resolve_model("HF://user/repo/big/w-00001-of-00002.gguf")
    assert (source.name, source.path.name) == ("w", "w-00001-of-00002.gguf")
    parts = ["big/w-00001-of-00002.gguf", "big/w-00002-of-00002.gguf"]
    assert hub.fetched == [[*TEXTS, *parts]]


def test_hub_repository_with_a_chat_config(hub: FakeHub) -> None:
    hub.names += ["mlc-chat-config.json", "w.safetensors"]
    source = resolve_model("hf://user/repo")
    assert (source.kind, source.name) == ("folder", "repo")
    texts = ["chat.jinja", "config.json", "mlc-chat-config.json", "tokenizer.model"]
    assert hub.fetched == [[*texts, "w.safetensors"]]


def test_hub_several_models_are_not_all_fetched(hub: FakeHub) -> None:
    hub.names.append("n.gguf")
    with pytest.raises(ModelNotFound, match=r"name one: HF://user/repo/FILE of m.gguf, n.gguf"):
        resolve_model("HF://user/repo")
    with pytest.raises(ModelNotFound, match="there is no such file in the repository"):
        resolve_model("HF://user/repo/o.gguf")
    assert hub.fetched == []


def test_hub_offline_leaves_nothing_behind(hub: FakeHub, tmp_path: Path) -> None:
    hub.offline = True
    with pytest.raises(ModelNotFound, match="could not download HF://user/repo: no route to host"):
        resolve_model("HF://user/repo")
    assert list(tmp_path.iterdir()) == []


def test_hub_that_never_answers(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc_llm.support.hub.LISTING_S", 0.01)
    hub.hanging.clear()
    with pytest.raises(ModelNotFound, match=r"no answer within 0\.01 seconds"):
        resolve_model("HF://user/repo")
    hub.hanging.set()


def test_hub_is_waited_for_less_than_ten_seconds() -> None:
    assert LISTING_S < 9


@pytest.mark.parametrize(
    ("came", "left"),
    [
        ([], []),
        ([".cache/huggingface/download/m.incomplete"], ["m.incomplete"]),
        (["config.json"], ["config.json"]),
    ],
)
def test_hub_that_breaks_off_leaves_only_what_came(
    came: list[str], left: list[str], hub: FakeHub, tmp_path: Path
) -> None:
    hub.breaks_after = came
    with pytest.raises(ModelNotFound, match="the network is gone"):
        resolve_model("HF://user/repo")
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names - {".lock", "m.lock"} == set(left)
    if not came:
        assert list((tmp_path / "cache").iterdir()) == []


def test_hub_is_quiet_when_the_program_is(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    utils = types.ModuleType("huggingface_hub.utils")
    utils.disable_progress_bars = lambda: done.append("bars")  # type: ignore[attr-defined]
    utils.logging = types.SimpleNamespace(  # type: ignore[attr-defined]
        set_verbosity_error=lambda: done.append("log")
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", utils)
    resolve_model("HF://user/repo")
    assert done == []
    monkeypatch.setenv("MLC_LLM_QUIET", "1")
    resolve_model("HF://user/repo/m.gguf")
    assert set(done) == {"bars", "log"}


def test_hub_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r'pip install "mlc-llm\[hub\]"'):
        resolve_model("HF://user/repo")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "model",
    ["HF://user", "HF://../repo", "HF://user/..", "HF://a/b/../c.gguf", "https://example.org/a/b",
     "HF://user/repo/weights.bin", "HF://user/re\npo", "file:///a.gguf"],
)  # fmt: skip
def test_other_addresses(model: str) -> None:
    with pytest.raises(InvalidField, match="model = "):
        resolve_model(model)
