"""Versions and places of installed packages, with and without `importlib.metadata`."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from mlc_llm.support.distributions import distribution, version

LIGHT = """
import sys
from mlc_llm.support.distributions import light_metadata, version
with light_metadata():
    import importlib.metadata as light
assert "email" not in sys.modules and "importlib.metadata" not in sys.modules
assert light.version("apache-tvm") == version("apache-tvm")
assert "email" not in sys.modules
import importlib.metadata
assert importlib.metadata is not light
assert importlib.metadata.version("apache-tvm") == light.version("apache-tvm")
assert light.PackageNotFoundError is importlib.metadata.PackageNotFoundError
with light_metadata():  # nothing stands in for what is loaded
    import importlib.metadata as again
assert again is importlib.metadata
"""


@pytest.mark.parametrize("name", ["apache-tvm", "apache_tvm_ffi", "Jinja2", "tokenizers"])
def test_a_version_is_the_one_that_python_knows(name: str) -> None:
    assert version(name) == importlib.metadata.version(name)


def test_files_of_a_package_are_read() -> None:
    found, known = distribution("apache-tvm-ffi"), importlib.metadata.distribution("apache-tvm-ffi")
    assert found.read_text("RECORD") == known.read_text("RECORD")
    assert found.read_text("NO_SUCH_FILE") is None


def test_the_first_folder_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apache_tvm-9.9+one.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path), *sys.path])
    assert version("Apache.TVM") == "9.9+one"


def test_an_unusual_form_is_left_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "old.egg-info"
    folder.mkdir()
    (folder / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: old\nVersion: 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert version("old") == "3"
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        version("there is no such package")


def test_python_s_own_module_comes_back() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
