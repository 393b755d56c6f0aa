"""Models of Hugging Face whose repository changes: what is used, what is fetched, what goes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hub_cache import ADDRESS, WEIGHTS, as_before, folder_of, left, mark_of, repository_of
from hub_server import COMMIT, Hub

from mlc_llm.errors import CacheError, ModelNotFound
from mlc_llm.support import files, hub_download
from mlc_llm.support.cached import entries
from mlc_llm.support.model_source import fetched, resolve_model

SHARDS = {
    "config.json": b'{"version": 1}',
    "chat_template.jinja": b"old",
    "model-00001-of-00001.safetensors": WEIGHTS,
    "model.safetensors.index.json": b"{}",
}


@pytest.mark.parametrize("is_older", [False, True])
def test_files_that_a_newer_version_lacks_go(is_older: bool, hub: Hub, place: Path) -> None:
    hub.files = dict(SHARDS)
    fetched(ADDRESS)
    if is_older:
        as_before(place)
        assert fetched(ADDRESS).path == repository_of(place) and hub.lists == 1
    hub.files = {"config.json": b'{"version": 2}', "model.safetensors": WEIGHTS[::-1]}
    hub.commit = COMMIT[::-1]
    source = fetched(ADDRESS, renew=True)
    assert (source.path, source.name) == (folder_of(place, hub.commit), "repo")
    assert {one.name: one.read_bytes() for one in source.path.iterdir()} == hub.files
    assert left(place) == {*hub.files, mark_of(place).name}


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("fault", ["refused", "wrong", "full"])
def test_a_model_stays_when_its_update_fails(
    fault: str, is_older: bool, hub: Hub, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = resolve_model(ADDRESS)
    if is_older:
        as_before(place)
        source = resolve_model(ADDRESS)
    hub.files = {"generation_config.json": b'{"top_p": 1}', "m.gguf": WEIGHTS[::-1]}
    hub.commit = COMMIT[::-1]
    with monkeypatch.context() as patch:
        hub.refuses = (403, "", "") if fault == "refused" else None
        hub.sends = {"m.gguf": WEIGHTS} if fault == "wrong" else {}
        if fault == "full":
            usage = type("Usage", (), {"free": 100})
            patch.setattr(files.shutil, "disk_usage", lambda folder: usage)
        with pytest.raises((ModelNotFound, CacheError)):
            fetched(ADDRESS, renew=True)
    lists = hub.lists
    assert resolve_model(ADDRESS) == source and hub.lists == lists
    assert source.path.read_bytes() == WEIGHTS
    assert (source.path.parent / "generation_config.json").read_bytes() == b"{}"
    hub.refuses, hub.sends = None, {}
    assert fetched(ADDRESS, renew=True).path.read_bytes() == WEIGHTS[::-1]
    assert left(place) == {*hub.files, mark_of(place).name}


def test_two_files_of_a_repository_at_two_versions(hub: Hub, place: Path) -> None:
    hub.files |= {"m-Q8_0.gguf": WEIGHTS, "m-Q4_0.gguf": WEIGHTS[::-1]}
    first = resolve_model("HF://user/repo:Q8_0").path
    assert resolve_model("HF://user/repo:Q4_0").path.parent == first.parent
    hub.files["generation_config.json"] = b'{"top_p": 1}'
    hub.commit = COMMIT[::-1]
    second = fetched("HF://user/repo:Q4_0", renew=True).path
    asked, hub.refuses_list = [one.name for one in hub.asked], (500, "", "")
    assert asked.count("m-Q4_0.gguf") == 3 and second.read_bytes() == WEIGHTS[::-1]
    (both,) = (one for one in entries(place) if one.kind == "download")
    assert both.model == "user/repo" and 2 * len(WEIGHTS) < both.size < 3 * len(WEIGHTS)
    texts = []
    for tag, path in (("Q8_0", first), ("Q4_0", second)):
        assert resolve_model(f"HF://user/repo:{tag}").path == path
        texts.append((path.parent / "generation_config.json").read_bytes())
    assert texts == [b"{}", b'{"top_p": 1}']
    hub.refuses_list = None
    assert fetched("HF://user/repo:Q8_0", renew=True).path.parent == second.parent
    assert not first.parent.exists() and asked.count("m-Q8_0.gguf") == 3


def test_one_of_two_older_downloads_is_renewed(hub: Hub, place: Path) -> None:
    hub.files |= {"m-Q8_0.gguf": WEIGHTS, "m-Q4_0.gguf": WEIGHTS[::-1]}
    for tag in ("Q8_0", "Q4_0"):
        resolve_model(f"HF://user/repo:{tag}")
    as_before(place)
    hub.commit = COMMIT[::-1]
    hub.asked.clear()
    assert fetched("HF://user/repo:Q4_0", renew=True).path.parent == folder_of(place, hub.commit)
    assert hub.asked == []
    lists = hub.lists
    assert resolve_model("HF://user/repo:Q8_0").path == repository_of(place) / "m-Q8_0.gguf"
    assert hub.lists == lists and not (repository_of(place) / "m-Q4_0.gguf").exists()


def test_what_has_no_links_is_copied(
    hub: Hub, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    resolve_model(ADDRESS)
    monkeypatch.setattr(hub_download.os, "link", refuse)
    hub.commit = COMMIT[::-1]
    hub.asked.clear()
    assert fetched(ADDRESS, renew=True).path.read_bytes() == WEIGHTS and hub.asked == []


@pytest.mark.parametrize("text", ["[]", "{", '{"model": 1}', '{"model": 1, "files": {}}'])
def test_a_damaged_record_is_no_download(text: str, hub: Hub, place: Path) -> None:
    path = resolve_model(ADDRESS).path
    mark_of(place).write_text(text)
    hub.asked.clear()
    assert resolve_model(ADDRESS).path == path and hub.asked == []
