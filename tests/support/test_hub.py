"""Models of Hugging Face, from a server on this machine that speaks its protocol."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_cache import ADDRESS, WEIGHTS, folder_of, left, mark_of
from hub_server import COMMIT, Hub, serving
from safetensors.numpy import save

from mlc_llm.cli.__main__ import main
from mlc_llm.errors import CacheError, ModelNotFound
from mlc_llm.model_files.dense_modules import dense_modules
from mlc_llm.model_files.pooling import folder_pooling
from mlc_llm.support import files, hub_download
from mlc_llm.support import hub as protocol
from mlc_llm.support.hub_address import parse_address
from mlc_llm.support.hub_model import fetched_model
from mlc_llm.support.model_source import fetched, resolve_model

pytestmark = pytest.mark.usefixtures("place")


def refused(address: str = ADDRESS) -> str:
    """The one line of the error."""
    with pytest.raises(ModelNotFound) as caught:
        resolve_model(address)
    line = str(caught.value)
    assert "\n" not in line and address in line
    return line


def test_a_model_is_fetched_once_and_used_without_the_network(hub: Hub, place: Path) -> None:
    source = resolve_model(ADDRESS)
    assert (source.path, source.kind, source.name) == (folder_of(place) / "m.gguf", "gguf", "m")
    assert source.path.read_bytes() == WEIGHTS
    assert sorted(one.range or "" for one in hub.asked if one.name == "m.gguf") == [
        "bytes=0-4095",
        "bytes=4096-8191",
        "bytes=8192-10239",
    ]
    assert left(place) == {"m.gguf", "generation_config.json", ".repository.complete.json"}
    asked, hub.refuses_list = len(hub.asked), (500, "", "")
    assert resolve_model(ADDRESS) == source and hub.lists == 1 and len(hub.asked) == asked


def test_using_a_model_is_seen(hub: Hub, place: Path) -> None:
    resolve_model(ADDRESS)
    mark = mark_of(place)
    os.utime(mark, (1e9, 1e9))
    resolve_model(ADDRESS)
    assert mark.stat().st_mtime > 1e9


@pytest.mark.parametrize("cuts", [[0, 1, 0, 4095], [2000, 100, 5, 1]])
def test_what_breaks_off_goes_on(cuts: list[int], hub: Hub) -> None:
    hub.cuts = cuts
    assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS


def test_the_next_try_goes_on_where_the_last_one_ended(hub: Hub, place: Path) -> None:
    hub.files = {"m.gguf": WEIGHTS[:4000]}
    hub.cuts = [1000, 0, 0, 0]
    assert "127.0.0.1" in (line := refused()) and "broke off m.gguf" in line
    assert len(left(place)) == 2  # the part, and how much of it is there
    hub.asked.clear()
    hub.cuts.clear()
    assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS[:4000]
    assert [one.range for one in hub.asked] == ["bytes=1000-3999"]
    assert left(place) == {"m.gguf", ".repository.complete.json"}


def test_a_part_of_an_older_version_is_not_used(hub: Hub, place: Path) -> None:
    hub.files = {"m.gguf": WEIGHTS[:4000]}
    hub.cuts = [1000, 0, 0, 0]
    refused()
    hub.files, hub.asked, hub.cuts = {"m.gguf": bytes(4000)}, [], []
    assert resolve_model(ADDRESS).path.read_bytes() == bytes(4000)
    assert [one.range for one in hub.asked] == [None]
    assert left(place) == {"m.gguf", ".repository.complete.json"}


@pytest.mark.parametrize("text", ["[]", "[9999]", "[-1]", '["a"]', "{", "[1, 2]"])
def test_a_damaged_note_of_a_part_is_not_believed(text: str, hub: Hub, place: Path) -> None:
    hub.files = {"m.gguf": WEIGHTS[:4000]}
    hub.cuts = [1000, 0, 0, 0]
    refused()
    for note in place.rglob(".parts/*.json"):
        note.write_text(text)
    assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS[:4000]


def test_a_server_that_does_not_know_range(hub: Hub) -> None:
    hub.knows_range = False
    hub.cuts = [3000, 9000, 100]
    assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS


def test_a_busy_server_is_asked_again(hub: Hub) -> None:
    hub.busy = 2
    assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS
    hub.files["m.gguf"] = bytes(10)
    hub.commit, hub.busy = COMMIT[::-1], 1000
    with pytest.raises(ModelNotFound, match="answers 503 Service Unavailable"):
        fetched(ADDRESS, renew=True)


@pytest.mark.parametrize("name", ["m.gguf", "generation_config.json"])
def test_a_wrong_hash_is_refused_and_removed(name: str, hub: Hub, place: Path) -> None:
    hub.sends = {name: hub.files[name][::-1]}
    line = refused()
    assert f"{name} arrived with the hash " in line and "it was removed" in line
    assert name not in left(place)
    hub.sends = {}
    assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS


@pytest.mark.parametrize(("more", "said"), [(-1, "sends 10239 bytes"), (5, "sends 10245 bytes")])
def test_a_wrong_size_is_refused(more: int, said: str, hub: Hub) -> None:
    hub.sends = {"m.gguf": WEIGHTS[:more] if more < 0 else WEIGHTS + bytes(more)}
    assert f"{said} of m.gguf; its list says 10240" in refused()


def test_a_redirect_gets_no_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(Hub(dict(hub.files))) as other:
        hub.elsewhere = other.url
        assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS
        assert {one.token for one in hub.asked} == {"Bearer hf_secret"}
        assert {one.token for one in other.asked} == {None}
        assert {one.range for one in other.asked} == {one.range for one in hub.asked}


def test_a_redirect_of_the_same_server_keeps_the_token(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.moved = True
    assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS
    assert {one.token for one in hub.asked} == {"Bearer hf_secret"}


def test_the_token_of_hf_auth_login(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "token").write_text("hf_kept\n")
    resolve_model(ADDRESS)
    assert {one.token for one in hub.asked} == {"Bearer hf_kept"}


@pytest.mark.parametrize(
    "token", ["hf_secret\nmore", "hf_secret more", "hf_s\u20acecret", "hf_s\x7f"]
)
@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"])
def test_a_token_that_is_none_is_not_shown(
    name: str, token: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text(token, encoding="utf-8")
    monkeypatch.setenv(name, str(file) if name == "HF_TOKEN_PATH" else token)
    line = refused()
    place = str(file) if name == "HF_TOKEN_PATH" else name
    assert f"the token in {place} has white space or other signs" in line
    assert "hf_s" not in line and "more" not in line and hub.lists == 0


def test_a_redirect_to_another_kind_of_address(hub: Hub) -> None:
    hub.elsewhere = "ftp://127.0.0.1"
    assert "redirects to ftp://127.0.0.1" in refused()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, "GatedRepo", "Access is restricted"), "want you to accept their licence on 127.0"),
        ((403, "GatedRepo", ""), "log in (hf auth login, or set HF_TOKEN)"),
        ((401, "", "Invalid credentials in Authorization header"), "refuses your token"),
        (
            (401, "RepoNotFound", "Invalid username"),
            "no such model; check the name; for a private",
        ),
        ((404, "RepoNotFound", ""), "no such model; check the name; for a private"),
        ((404, "EntryNotFound", ""), "has lost a file of its own list"),
        ((500, "", ""), "answers 500 Internal Server Error"),
        ((418, "", ""), "answers 418"),
    ],
)
def test_refusals(answer: tuple[int, str, str], said: str, hub: Hub, place: Path) -> None:
    hub.refuses = answer
    assert said in refused() and left(place) == set()
    if answer[1] != "EntryNotFound":
        hub.refuses_list = answer
        assert said in refused()
    assert not place.exists() or list(place.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        b"<html>", b"[]", b'{"sha": 1}', b'{"sha": "x", "siblings": []}', b"[" * 100_000,
        b'{"sha": "%s", "siblings": [{"rfilename": "m.gguf", "size": 1}]}' % COMMIT.encode(),
        b'{"sha": "%s", "siblings": [{"rfilename": "m.gguf", "size": -1, "blobId": "%s"}]}'
        % (COMMIT.encode(), COMMIT.encode()),
        *(
            b'{"sha": "%s", "siblings": [{"rfilename": %s, "size": 1, "blobId": "%s"}]}'
            % (COMMIT.encode(), name, COMMIT.encode())
            for name in (b"5", b"null", b"[]", b'["a"]', b'{"a": 1}')
        ),
    ],
)  # fmt: skip
def test_a_list_that_is_none(text: bytes, hub: Hub) -> None:
    hub.list_text = text
    assert "sends no list of files that can be read" in refused()


def test_no_network_is_one_line(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        host = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", f"http://{host}")
        line = refused()
    assert f"cannot reach {host}: Connection refused" in line and "check the network" in line
    assert not place.exists()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE is set"),
        ("HF_ENDPOINT", "file:///etc", "HF_ENDPOINT = 'file:///etc' should begin with https://"),
        ("HF_ENDPOINT", "http://[::1", "HF_ENDPOINT = 'http://[::1' is no address: Invalid IPv6"),
        ("HF_ENDPOINT", "http://127.0.0.1:99999", "cannot reach 127.0.0.1:99999"),
    ],
)
def test_settings(name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert said in refused()


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(protocol, "LISTING_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", f"http://{host}")
        line = refused()
    assert f"{host} gives no answer within 0.05" in line or f"cannot reach {host}" in line
    assert not place.exists() and 5 < protocol.STALL_S <= 10


def test_it_is_waited_less_than_ten_seconds() -> None:
    assert protocol.__dict__["LISTING_S"] < 9


def test_a_server_that_stops_in_the_middle(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STALL_S", 0.05)
    hub.holds = threading.Event()
    assert "no answer in time" in refused()
    hub.holds.set()
    assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS


def test_a_full_disk_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    def full(write: object, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(hub_download, "_write_all", full)
        with pytest.raises(CacheError, match=r"the disk is full; make room or set MLC_LLM_HOME"):
            resolve_model(ADDRESS)
    assert left(place) == set()
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(CacheError, match="needed to download user/repo, 0 MiB are free"):
        resolve_model(ADDRESS)
    assert list(place.iterdir()) == []


def test_a_damaged_file_is_fetched_again_and_no_other(hub: Hub) -> None:
    path = resolve_model(ADDRESS).path
    path.write_bytes(b"m")
    hub.asked.clear()
    assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS and hub.names == {"m.gguf"}


def test_only_a_newer_version_is_fetched(hub: Hub) -> None:
    path = fetched(ADDRESS, renew=True).path
    hub.asked.clear()
    hub.files["m.gguf"] = bytes(5000)
    fetched(ADDRESS, renew=True)
    assert hub.asked == [] and path.read_bytes() == WEIGHTS
    hub.commit = COMMIT[::-1]
    with path.open("rb") as running:
        newer = fetched(ADDRESS, renew=True).path
        assert running.read() == WEIGHTS and newer.read_bytes() == bytes(5000)
    assert hub.names == {"m.gguf"}


def test_pull(hub: Hub, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "HF://user/repo:m"]) == 0
    assert capsys.readouterr().out == f"m: 10.2 kB in {folder_of(place) / 'm.gguf'}\n"
    hub.refuses_list = (404, "RepoNotFound", "")
    assert main(["pull", "HF://user/repo:m"]) == 2
    caught = capsys.readouterr()
    assert caught.out == "" and caught.err.count("\n") == 1
    assert "could not download HF://user/repo:m: 127.0.0.1" in caught.err
    assert resolve_model("HF://user/repo:m").path.read_bytes() == WEIGHTS


PROGRAM = """
import sys
from mlc_llm.support import hub_download
from mlc_llm.support.model_source import resolve_model
hub_download.PIECE = 4096
print(resolve_model("HF://user/repo").path.stat().st_size)
"""


def test_two_processes_at_once(hub: Hub) -> None:
    hub.holds = threading.Event()
    command = [sys.executable, "-c", PROGRAM]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    while hub.lists < 2:
        assert [one.poll() for one in running] == [None, None]
        threading.Event().wait(0.01)
    hub.holds.set()
    assert [one.communicate(timeout=60)[0] for one in running] == [f"{len(WEIGHTS)}\n"] * 2
    assert [one.name for one in hub.asked].count("m.gguf") == 3  # each piece once


def test_a_killed_process_loses_little(hub: Hub, place: Path) -> None:
    hub.holds = threading.Event()
    hub.files = {"m.gguf": WEIGHTS[:4096]}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as running:
        while not any(place.rglob(".parts/*.json")):
            assert running.poll() is None
            threading.Event().wait(0.01)
        running.kill()
    hub.holds.set()
    hub.asked.clear()
    assert resolve_model(ADDRESS).path.read_bytes() == WEIGHTS[:4096]
    assert [one.range for one in hub.asked] == ["bytes=2048-4095"]


def test_progress_is_told_of_every_byte(hub: Hub) -> None:
    told: list[Any] = []

    class Shown:
        def __enter__(self) -> Shown:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def advance(self, n: float = 1) -> None:
            told.append(n)

    def show(label: str, total: float | None) -> Shown:
        told.append((label, total))
        return Shown()

    fetched_model(parse_address(ADDRESS), show)
    assert told[0] == ("downloading user/repo", len(WEIGHTS) + 2)
    assert sum(told[1:]) == len(WEIGHTS) + 2


def test_files_with_the_same_bytes(hub: Hub, place: Path) -> None:
    hub.files = {"m.gguf": b"", "generation_config.json": b"{}", "tokenizer_config.json": b"{}"}
    assert resolve_model(ADDRESS).path.read_bytes() == b""
    record = json.loads((mark_of(place)).read_text())
    assert record["files"] == {name: len(data) for name, data in hub.files.items()}


MODULES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "modules.json": json.dumps(
        [
            {"type": "sentence_transformers.models.Transformer", "path": ""},
            {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
            {"type": "sentence_transformers.models.Dense", "path": "2_Dense"},
        ]
    ).encode(),
    "1_Pooling/config.json": b'{"pooling_mode_cls_token": true}',
    "2_Dense/config.json": json.dumps(
        {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    ).encode(),
    "2_Dense/model.safetensors": save({"linear.weight": np.ones((8, 4), np.float32)}),
}


def test_a_folder_of_sentence_transformers_is_like_one_by_hand(hub: Hub, place: Path) -> None:
    hub.files = {**MODULES, "2_Dense/pytorch_model.bin": b"a pickle", "onnx/model.onnx": b"o"}
    folder = resolve_model(ADDRESS).path
    found = {one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()}
    assert found == MODULES.keys()
    assert folder_pooling(folder, with_dense=True) == "cls"
    assert [one.shape for one in dense_modules(folder).tensors.values()] == [(8, 4)]


def test_a_folder_of_an_older_choice_gets_what_it_lacks(hub: Hub, place: Path) -> None:
    hub.files = dict(MODULES)
    folder, mark = resolve_model(ADDRESS).path, mark_of(place)
    record = json.loads(mark.read_text())
    kept = {name: record["files"][name] for name in ("config.json", "model.safetensors")}
    older = {key: record[key] for key in ("model", "commit", "folder")} | {"files": kept}
    mark.write_text(json.dumps(older))
    for name in MODULES.keys() - kept.keys():
        (folder / name).unlink()
    hub.asked.clear()
    assert resolve_model(ADDRESS).path == folder
    assert folder_pooling(folder, with_dense=True) == "cls"
    assert hub.names == MODULES.keys() - kept.keys() and json.loads(mark.read_text()) == record


def test_a_gguf_file_of_an_older_choice_stays_whole(hub: Hub, place: Path) -> None:
    path, mark = resolve_model(ADDRESS).path, mark_of(place)
    record = json.loads(mark.read_text())
    kept = ("model", "commit", "folder", "files")
    mark.write_text(json.dumps({key: record[key] for key in kept}))
    lists, hub.refuses_list = hub.lists, (500, "", "")
    assert resolve_model(ADDRESS).path == path and hub.lists == lists
