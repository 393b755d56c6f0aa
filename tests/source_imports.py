"""Which file of the package imports which: read from the source, nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "python" / "mlc_llm"
NAME = "mlc_llm"


@dataclass(frozen=True)
class Import:
    """One imported module. `inside` is true within a function or a class."""

    importer: str
    imported: str
    line: int
    inside: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, for the whole package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    """The parsed source of a module of the package."""
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    """Every import in the file: top-level, TYPE_CHECKING and in-function alike."""
    return tuple(_walk(module, tree(module), inside=False))


def _walk(module: str, node: ast.AST, *, inside: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, inside)
        elif isinstance(child, ast.ImportFrom):
            for name in _from(module, child):
                yield Import(module, name, child.lineno, inside)
        scope = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda))
        yield from _walk(module, child, inside=inside or scope)


def _from(module: str, node: ast.ImportFrom) -> Iterator[str]:
    """`from a import b` imports a.b if that is a module of ours, else a."""
    base = _base(module, node)
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        yield inner if inner in modules() else base


def _base(module: str, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    is_package = modules()[module].name == "__init__.py"
    up = node.level - 1 if is_package else node.level
    parts = parts[: len(parts) - up]
    return ".".join([*parts, node.module] if node.module else parts)


def is_ours(name: str) -> bool:
    """The name lies in the package."""
    return name == NAME or name.startswith(NAME + ".")


def circles() -> list[list[str]]:
    """Circles of files (strongly connected groups of more than one, or a file importing itself)."""
    graph = {
        module: {i.imported for i in imports_of(module) if i.imported in modules()}
        for module in modules()
    }
    return [group for group in _components(graph) if len(group) > 1 or group[0] in graph[group[0]]]


def _components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Kosaraju: nodes that reach each other."""
    order: list[str] = []
    _visit_all(graph, sorted(graph), order)
    backwards: dict[str, set[str]] = {node: set() for node in graph}
    for node, targets in graph.items():
        for target in targets:
            backwards[target].add(node)
    groups: list[list[str]] = []
    seen: set[str] = set()
    for node in reversed(order):
        if node not in seen:
            group: list[str] = []
            _visit(backwards, node, seen, group)
            groups.append(sorted(group))
    return groups


def _visit_all(graph: dict[str, set[str]], nodes: list[str], order: list[str]) -> None:
    seen: set[str] = set()
    for node in nodes:
        if node not in seen:
            _visit(graph, node, seen, order)


def _visit(graph: dict[str, set[str]], start: str, seen: set[str], order: list[str]) -> None:
    """Depth first; a node is added to `order` when all it reaches has been."""
    seen.add(start)
    stack = [(start, iter(sorted(graph[start])))]
    while stack:
        node, targets = stack[-1]
        target = next((one for one in targets if one not in seen), None)
        if target is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(target)
            stack.append((target, iter(sorted(graph[target]))))
