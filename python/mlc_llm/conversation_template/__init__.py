"""Chat templates: those of model files (Jinja, in a sandbox) and named ones (data)."""

from __future__ import annotations

from mlc_llm.conversation_template.jinja import ChatTemplate
from mlc_llm.conversation_template.registry import ConvTemplateRegistry

__all__ = ["ChatTemplate", "ConvTemplateRegistry"]
