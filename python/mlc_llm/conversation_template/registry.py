"""Conversation templates by name."""

from __future__ import annotations

from mlc_llm.conversation_template.families import FAMILIES
from mlc_llm.errors import InvalidField
from mlc_llm.protocol.conversation_protocol import Conversation


class ConvTemplateRegistry:
    """The named templates. Those of `families.py` are registered at the start."""

    _templates: dict[str, Conversation] = {}  # noqa: RUF012 - the registry itself

    @classmethod
    def register_conv_template(cls, conv_template: Conversation, override: bool = False) -> None:
        """Add a template under its name. Raises `InvalidField` if it has no name, or if the name
        exists already and `override` is False."""
        if not conv_template.name:
            raise InvalidField("name", conv_template.name, "a registered template needs a name")
        if conv_template.name in cls._templates and not override:
            raise InvalidField("name", conv_template.name, "a template of this name is registered")
        cls._templates[conv_template.name] = conv_template

    @classmethod
    def get_conv_template(cls, name: str) -> Conversation | None:
        """A copy of the template, which may be changed. None if there is no such name."""
        found = cls._templates.get(name)
        return None if found is None else found.model_copy(deep=True)

    @classmethod
    def names(cls) -> list[str]:
        """All names, in alphabetical order."""
        return sorted(cls._templates)


for _template in FAMILIES:
    ConvTemplateRegistry.register_conv_template(_template)
