"""Chat templates: those of model files (Jinja, in a sandbox) and the named ones (data)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlc_llm.conversation_template.jinja import ChatTemplate

if TYPE_CHECKING:
    from mlc_llm.conversation_template.registry import ConvTemplateRegistry

__all__ = ["ChatTemplate", "ConvTemplateRegistry"]


def __getattr__(name: str) -> type[ConvTemplateRegistry]:
    """The named templates. They are loaded when first used, because few models need them."""
    if name != "ConvTemplateRegistry":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from mlc_llm.conversation_template.registry import ConvTemplateRegistry

    return ConvTemplateRegistry
