"""The files of the chat page, as the server gives them. `tests/page` opens it in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from server_harness import Running

from mlc_llm.serve.server.routes.page import FOLDER, INDEX, PAGE_PATHS

ELSEWHERE = re.compile(r"""(?:src|href|url\(|from|import|fetch\()\s*=?\s*["'(]?\s*(?:https?:)?//""")
FORBIDDEN = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(")
MOST_BYTES = 100_000


@pytest.mark.parametrize("path", PAGE_PATHS)
def test_each_file_comes_with_the_policy(server: Running, path: str) -> None:
    reply = server.call("GET", path)
    assert reply.status == 200
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    kinds = {"": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg"}
    assert reply.headers["content-type"].startswith(kinds[path.rpartition(".")[2].strip("/")])
    again = server.call("GET", path, headers={"if-none-match": reply.headers["etag"]})
    assert (again.status, again.data) == (304, b"")
    assert server.call("HEAD", path).data == b""


def test_nothing_comes_from_elsewhere_and_nothing_parses_html() -> None:
    files = sorted(FOLDER.iterdir())
    assert {f"/page/{one.name}" for one in files if one.name != INDEX} == {*PAGE_PATHS} - {"/"}
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert not ELSEWHERE.search(text), file.name
        assert not [word for word in FORBIDDEN if word in text], file.name
        assert len(text.splitlines()) < 300, file.name
    assert sum(len(file.read_bytes()) for file in files) < MOST_BYTES


def test_the_page_has_no_inline_script_or_style() -> None:
    text = (FOLDER / INDEX).read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", text)
    for name in re.findall(r'(?:src|href)="page/([^"]+)"', text):
        assert (FOLDER / name).is_file(), name


def test_the_files_are_installed() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(r'^mlc_llm = (\[.*"py.typed".*\])$', project, re.MULTILINE)
    package = FOLDER.parents[2]
    found = {one for pattern in json.loads(listed) for one in package.glob(pattern)}
    assert set(FOLDER.iterdir()) <= found
