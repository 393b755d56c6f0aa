"""Our own regular expressions: none takes more than linear time, whatever text it gets."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from source_imports import modules, tree

if sys.version_info >= (3, 11):
    import re._parser as parser
else:
    import sre_parse as parser

REPEATS = {"MAX_REPEAT", "MIN_REPEAT"}
MOST_S = 20
"""Of processor time for a pattern and a megabyte. A quadratic search would take hours."""
SEARCH = """
import json, re, resource, sys
most, probes = json.loads(sys.argv[1]), json.loads(sys.argv[2])
for pattern in json.loads(sys.stdin.read()):
    print(json.dumps(pattern), flush=True)
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + most
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
    for probe in probes:
        text = probe * ((1 << 20) // len(probe))
        for ending in ("", "\\0"):
            re.search(pattern, text + ending)
print("done")
"""
OF_SHORT_TEXTS = {
    r"(.+)-00001-of-(0[01]\d{3})\.gguf",
    r"(.+)-(\d{5})-of-(\d{5})\.gguf",
    r"(?P<name>[^{]*)(?:\{(?P<labels>.*)\})?\Z",
}
"""Patterns that get names of files only, which systems bound to 255 bytes. And the last one gets
names of metrics, which are our own."""
WHOLE = {
    r"(.+)-(\d{5})-of-(\d{5})(\.gguf)?",
    r"([A-Za-z0-9+/]+={0,2}) (\d{1,7})",
    r"\*|null|[a-z][a-z0-9+.-]*://[^\sA-Z/]+",
}
"""Patterns that the code compares with a whole text (`fullmatch`), and never searches for."""
PROBES = ("a", "0", " ", "\n", "<", "{", "\\", '"', "é", "a ", "{a", "1,", "<|", "a{b=", "'a ")
FUNCTIONS = {
    "compile",
    "match",
    "search",
    "fullmatch",
    "sub",
    "subn",
    "split",
    "findall",
    "finditer",
}


def _patterns() -> Iterator[tuple[str, str]]:
    """(module, pattern) of each call of `re` whose pattern stands in the source."""
    for module in modules():
        for node in ast.walk(tree(module)):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
            ):
                continue
            owner, first = node.func.value, node.args[0]
            if not (
                isinstance(owner, ast.Name) and owner.id == "re" and node.func.attr in FUNCTIONS
            ):
                continue
            if isinstance(first, ast.Constant) and isinstance(first.value, (str, bytes)):
                text = first.value
                yield module, text if isinstance(text, str) else text.decode("latin-1")


@cache
def ours() -> list[tuple[str, str]]:
    """Each of them once. Nobody who only collects tests waits for that."""
    return sorted(set(_patterns()))


def nested_repeats(items: Any, *, inside: bool = False) -> bool:
    """A repetition without an end inside another one, as in (a+)+."""
    for kind, value in items:
        name, deeper = str(kind), inside
        if name in REPEATS:
            _, most, inner = value
            is_endless = most == parser.MAXREPEAT
            if is_endless and inside:
                return True
            deeper = inside or is_endless
            if nested_repeats(inner, inside=deeper):
                return True
        elif name == "SUBPATTERN":
            if nested_repeats(value[3], inside=inside):
                return True
        elif name == "BRANCH":
            if any(nested_repeats(branch, inside=inside) for branch in value[1]):
                return True
        elif name in {"ASSERT", "ASSERT_NOT"} and nested_repeats(value[1], inside=inside):
            return True
    return False


def test_the_lint_sees_what_it_should() -> None:
    for bad in ("(a+)+", "(a*b?)*", "((a|b+)c)*", "(?:x(y*))+", "(?=(a+)+)b"):
        assert nested_repeats(parser.parse(bad)), bad
    for good in ("a+b+", "(a{1,3})+", "[a-z]*_(b|c)?", "(?:ab)+"):
        assert not nested_repeats(parser.parse(good)), good


def test_there_are_patterns_to_look_at() -> None:
    assert len(ours()) >= 20


def test_no_repetition_stands_in_another() -> None:
    for module, pattern in ours():
        assert not nested_repeats(parser.parse(pattern)), f"{module}: {pattern}"


def searched(patterns: list[str], most: int) -> list[str]:
    """What a child says that searches a megabyte of each probe for each pattern."""
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(most), json.dumps(PROBES)],
        input=json.dumps(patterns), capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_megabyte_takes_linear_time() -> None:
    all_of_them = {one for _, one in ours()}
    assert all_of_them >= OF_SHORT_TEXTS | WHOLE
    whole = [rf"\A(?:{one})" for one in WHOLE]
    said = searched([*sorted(all_of_them - OF_SHORT_TEXTS - WHOLE), *whole], MOST_S)
    assert said[-1] == "done", f"too slow: {said[-1]}"


def test_a_quadratic_search_is_seen() -> None:
    assert searched(["a*b"], 1) == [json.dumps("a*b")]
