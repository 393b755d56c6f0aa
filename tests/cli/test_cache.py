"""`mlc_llm list`, `remove` and `pull`: what they show and change of a real cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.cli import checkup
from mlc_llm.cli.__main__ import main
from mlc_llm.compiler import jit
from mlc_llm.library.metadata import METADATA_FILE, PARAMS_FILE
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.support import content
from mlc_llm.support.superseded import lock_of
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

MADE = {"packed weights", "library", "vocabulary", "checksum"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models that were used, a downloaded one and one of a repository, and a history."""
    home = tmp_path / "home"
    monkeypatch.setenv("MLC_LLM_HOME", str(home))
    monkeypatch.setattr(content, "SETTLED_S", -1e9)

    def build(config: object, isa: object, folder: Path, **_: object) -> None:
        (folder / METADATA_FILE).write_text("{}")

    monkeypatch.setattr("mlc_llm.compiler.build.build_library", build)
    for layers, name in ((1, "ann.gguf"), (2, "bob.gguf")):
        use(write_tiny_model(tmp_path / name, shape=TinyShape(layers=layers)))
    for place, name in (("package-1.0", "default.gguf"), ("hf/user/repo", "weights.gguf")):
        folder = home / "model_weights" / place
        folder.mkdir(parents=True)
        (folder / name).write_bytes(bytes(1000))
        (folder / ".lock").touch()
        (folder / ".repository.complete.json").write_text("{}")
    (home / "history").write_text("hello")
    return home


def use(model: Path) -> jit.Prepared:
    open_model(str(model))
    return jit.prepare(GGUFModel.open(model), "portable")


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, set[str]]:
    return kinds(ask(capsys, "list")["entries"])


def kinds(entries: Sequence[dict[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in entries:
        found.setdefault(one["model"], set()).add(one["kind"])
    return found


def test_list_names_models(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys) == {
        "ann.gguf": MADE,
        "bob.gguf": MADE,
        "default.gguf": {"download"},
        "user/repo": {"download"},
    }
    found = ask(capsys, "list", "bob")
    assert kinds(found["entries"]) == {"bob.gguf": MADE}
    assert found["bytes"] == sum(one["bytes"] for one in found["entries"])
    assert all(Path(one["path"]).exists() and one["last_use"] > 1e9 for one in found["entries"])


def test_list_for_people(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["list"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.split() == ["model", "kind", "size", "last", "use"]
    assert any(line.split()[:3] == ["ann.gguf", "packed", "weights"] for line in lines)
    assert lines[-1].endswith(f" in {cache}")


def test_remove_leaves_what_would_need_a_network(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ask(capsys, "list")["bytes"]
    removed = ask(capsys, "remove", "--made")
    assert kinds(removed["removed"]) == {"ann.gguf": MADE, "bob.gguf": MADE}
    assert removed["bytes"] == before - 2004
    assert listed(capsys) == {"default.gguf": {"download"}, "user/repo": {"download"}}
    assert not [one for one in (cache / "model_lib").iterdir() if one.is_dir()]


def test_remove_all(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(ask(capsys, "remove", "--all")["removed"]) == 10
    assert listed(capsys) == {} and (cache / "history").read_text() == "hello"
    assert main(["remove", "--all"]) == 0
    assert f"nothing to remove in {cache}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ann.gguf", "ann", "/a/folder/ann.gguf"])
def test_remove_of_one_model(cache: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["remove", name]) == 0
    out = capsys.readouterr().out
    assert "ann.gguf" in out and "bob.gguf" not in out and f" removed from {cache}" in out
    assert set(listed(capsys)) == {"bob.gguf", "default.gguf", "user/repo"}


def test_remove_of_a_download(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["remove", "user/repo", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert set(listed(capsys)) == {"ann.gguf", "bob.gguf", "default.gguf"}


@pytest.mark.parametrize(
    "name", ["user/repo", "HF://user/repo", "https://huggingface.co/user/repo/"]
)
def test_what_was_made_of_a_download_goes_with_it(
    cache: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cache / "model_weights" / "hf" / "user" / "repo"
    use(write_tiny_model(folder / "weights.gguf", shape=TinyShape(layers=3)))
    assert listed(capsys)["weights.gguf"] == MADE
    removed = kinds(ask(capsys, "remove", name)["removed"])
    assert removed == {"weights.gguf": MADE, "user/repo": {"download"}}
    assert {one.name for one in folder.iterdir()} == {".lock"}
    assert set(listed(capsys)) == {"ann.gguf", "bob.gguf", "default.gguf"}


@pytest.mark.parametrize("is_here", [False, True])
def test_all_files_of_a_folder_go_with_it(
    cache: Path,
    tmp_path: Path,
    is_here: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "carl-MLC"
    words = ["convert_weight", str(tmp_path / "ann.gguf"), "--quantization", "q0f16", "--quiet"]
    assert main([*words, "-o", str(folder)]) == 0
    before = listed(capsys)
    monkeypatch.chdir(folder)
    model = open_model("." if is_here else str(folder)).files
    assert model is not None and len(model.opened) > 2
    jit.prepare(model, "portable")
    mine = {"packed weights", "library", "checksum"}
    assert listed(capsys) == {**before, "carl-MLC": mine}
    removed = kinds(ask(capsys, "remove", "carl-MLC")["removed"])
    assert removed == {"carl-MLC": mine} and listed(capsys) == before


def test_a_part_of_a_download_is_shown_and_removed(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = cache / "model_weights" / "hf" / "eve" / "repo" / ".parts"
    parts.mkdir(parents=True)
    with (parts / "m").open("wb") as file:
        file.write(bytes(4096))
        file.truncate(1 << 30)
    found = ask(capsys, "list", "eve/repo")
    assert kinds(found["entries"]) == {"eve/repo": {"part of a download"}}
    assert found["bytes"] < 1 << 20
    assert main(["remove", "eve/repo", "--quiet"]) == 0 and not parts.parent.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["remove", "eve"], "the cache has nothing of 'eve'; mlc_llm list shows what it has"),
        (["remove", "ann", "eve"], "the cache has nothing of 'eve'"),
        (["list", "eve"], "the cache has nothing of 'eve'"),
        (["remove", "ann", "--all"], "say what to remove: NAME, --made or --all, one of them"),
        (["remove", "--made", "--all"], "say what to remove"),
        (["remove"], "say what to remove"),
        (["pull", "llama3.2"], "'llama3.2' cannot be downloaded; give HF://user/repo, "),
        (["pull", "user/repo"], "'user/repo' cannot be downloaded; did you mean HF://user/repo?"),
        (["pull", "HF://user"], "model = 'HF://user' is not allowed"),
    ],
)
def test_mistakes(
    cache: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(words) == 2
    caught = capsys.readouterr()
    assert said in caught.err and caught.err.count("\n") == 1 and caught.out == ""
    assert set(listed(capsys)) == {"ann.gguf", "bob.gguf", "default.gguf", "user/repo"}


def test_stray_files_and_links_are_left_alone(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, hub = listed(capsys), cache / "model_weights" / "hf"
    (tmp_path / "elsewhere" / "folder").mkdir(parents=True)
    (tmp_path / "elsewhere" / "folder" / "a.gguf").touch()
    (hub / "link").symlink_to(tmp_path / "elsewhere")
    strays = [hub / ".DS_Store", hub / "user" / ".DS_Store", cache / "model_weights" / ".DS_Store"]
    for stray in strays:
        stray.write_text("stray")
    dead = [hub / "dead", hub / "user" / "dead", cache / "dead"]
    for link in dead:
        link.symlink_to("nowhere")
    (cache / "loop").symlink_to("loop")
    assert listed(capsys) == before
    assert "user/repo, download" in checkup.examine().sections["cache"]
    assert main(["remove", "user/repo", "--quiet"]) == 0
    assert main(["remove", "--all", "--quiet"]) == 0 and listed(capsys) == {}
    assert all(one.is_file() for one in (*strays, tmp_path / "elsewhere" / "folder" / "a.gguf"))
    assert all(one.is_symlink() for one in dead)


def test_no_cache_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "nowhere"))
    assert listed(capsys) == {} and not (tmp_path / "nowhere").exists()


def test_who_has_weights_open_keeps_them_and_others_make_them_again(
    cache: Path, tmp_path: Path
) -> None:
    weights = use(tmp_path / "ann.gguf").weights
    before = (weights / PARAMS_FILE).read_bytes()
    with (weights / PARAMS_FILE).open("rb") as file:
        assert main(["remove", "--made", "--quiet"]) == 0
        assert not weights.exists() and file.read() == before
    assert lock_of(weights).exists(), "others may wait for it"
    again = use(tmp_path / "ann.gguf").weights
    assert again == weights and (again / PARAMS_FILE).read_bytes() == before


def test_builds_of_older_versions_have_no_name(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for build in (cache / "model_lib").glob("*/about.txt"):
        build.unlink()
    for note in (cache / "kept").iterdir():
        note.write_bytes(bytes(range(256)))
    found = listed(capsys)
    assert found["(not known)"] == {"library", "vocabulary"}
    assert found["ann.gguf"] == {"packed weights"}
    shutil.rmtree(cache / "model_weights")
    assert set(kinds(ask(capsys, "remove", "--made")["removed"])) == {"(not known)"}


def test_doctor_names_models(cache: Path) -> None:
    shown = checkup.examine().sections["cache"]
    assert {"ann.gguf, packed weights", "bob.gguf, library", "user/repo, download"} <= set(shown)
    assert shown["default.gguf, download"] == "1.0 kB" and shown["history"] == "5 bytes"
