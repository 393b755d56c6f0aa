"""Tools of the Responses API as tools of the chat API.

A client may group its functions in a `namespace`, as Codex does with those of an MCP server. The
model reads one name for both, and a call in the answer has the two names again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc_llm.errors import InvalidField
from mlc_llm.protocol import checks
from mlc_llm.protocol.openai_messages import MAX_NAME_CHARS

MAX_GROUPED = 1024
CHOICES = ("none", "auto", "required")

Given = Mapping[str, object]


class Tools:
    """The tools of one request."""

    def __init__(self, given: Sequence[Given]) -> None:
        """Raises `UserError` that names what is wrong."""
        self.by_name: dict[str, Given] = {}
        """What the model knows, in the chat API's shape."""
        self.dropped: list[str] = []
        """Paths of tools that a server runs itself, which this one does not."""
        self._parts: dict[str, tuple[str, str]] = {}
        for i, tool in enumerate(given):
            self._put(f"tools[{i}]", tool)

    def _put(self, path: str, tool: Given) -> None:
        kind = tool.get("type")
        if kind == "function":
            self._add(path, tool)
        elif kind == "namespace":
            space = checks.string(f"{path}.name", tool.get("name"), MAX_NAME_CHARS, min_chars=1)
            for i, one in enumerate(
                checks.listing(f"{path}.tools", tool.get("tools"), MAX_GROUPED)
            ):
                field = f"{path}.tools[{i}]"
                if not isinstance(one, Mapping) or one.get("type") != "function":
                    raise checks.wrong_type(field, one, "should be an object of type function")
                self._add(field, one, space)
        elif isinstance(kind, str):
            self.dropped.append(path)
        else:
            raise checks.wrong_type(f"{path}.type", kind, "should be function or namespace")

    def _add(self, path: str, tool: Given, space: str = "") -> None:
        own = checks.string(f"{path}.name", tool.get("name"), MAX_NAME_CHARS, min_chars=1)
        name = full_name(space, own)
        parameters = tool.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise checks.wrong_type(f"{path}.parameters", parameters, "should be a JSON schema")
        if name in self.by_name:
            raise InvalidField(f"{path}.name", own, "another tool has this name")
        more = {key: tool.get(key) for key in ("description", "parameters", "strict")}
        self.by_name[name] = {"type": "function", "function": {"name": name, **more}}
        if space:
            self._parts[name] = space, own

    def names(self, name: str | None) -> dict[str, str | None]:
        """The fields of a call that name its tool."""
        space, own = self._parts.get(name or "", (None, name))
        return {"name": own} if space is None else {"namespace": space, "name": own}

    def fields(self, choice: object) -> dict[str, object]:
        """The fields `tools` and `tool_choice` of a chat request. choice: as given."""
        chosen: Sequence[str] = list(self.by_name)
        if isinstance(choice, Mapping):
            choice, chosen = self._chosen(choice)
        elif choice is not None:
            checks.one_of("tool_choice", choice, CHOICES)
            if choice == "required" and not chosen:
                raise InvalidField("tool_choice", choice, "there are no tools to choose from")
        return {"tools": [self.by_name[name] for name in chosen], "tool_choice": choice}

    def _chosen(self, choice: Given) -> tuple[object, Sequence[str]]:
        """The choice of the chat API, and the tools that may be chosen."""
        if choice.get("type") == "function":
            name = self._known("tool_choice", choice)
            return {"type": "function", "function": {"name": name}}, list(self.by_name)
        if choice.get("type") != "allowed_tools":
            allowed = "should be function or allowed_tools; this server runs no tools itself"
            raise InvalidField("tool_choice.type", choice.get("type"), allowed)
        mode = checks.one_of("tool_choice.mode", choice.get("mode"), ("auto", "required"))
        most = len(self.by_name) + len(self.dropped)
        listed = checks.listing("tool_choice.tools", choice.get("tools"), most)
        found = {self._known(f"tool_choice.tools[{i}]", tool) for i, tool in enumerate(listed)}
        return mode, [name for name in self.by_name if name in found]

    def _known(self, field: str, tool: object) -> str:
        given = tool.get("name") if isinstance(tool, Mapping) else None
        space = tool.get("namespace") if isinstance(tool, Mapping) else None
        name = full_name(space, given) if isinstance(given, str) else None
        if name not in self.by_name:
            raise InvalidField(f"{field}.name", given, "it names none of the tools")
        return str(name)


def full_name(space: object, name: str) -> str:
    """The name that the model reads for a function of a namespace; space: empty or null if none."""
    if not isinstance(space, str) or not space:
        return name
    return f"{space}{name}" if space.endswith("_") else f"{space}__{name}"
