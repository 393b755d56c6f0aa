"""Which form of calls and of thoughts a chat template shows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.serve.openai.tools.answer_tags import AnswerTags
from mlc_llm.serve.openai.tools.family import Family
from mlc_llm.serve.openai.tools.field_families import (
    DEEPSEEK_3_2,
    DEEPSEEK_4,
    GEMMA_4,
    GLM,
    GORILLA,
    HY_3,
    LFM_2,
    MINICPM_5,
    MINIMAX_2,
    PYTHON,
    QWEN_CODER,
    SEED,
)
from mlc_llm.serve.openai.tools.harmony import HARMONY
from mlc_llm.serve.openai.tools.json_families import (
    APERTUS,
    APRIEL,
    COMMAND,
    COMMAND_PLUS,
    DEEPSEEK_3_1,
    DEEPSEEK_R1,
    FUNCTIONARY,
    GIGACHAT_3_1,
    GRANITE_3,
    HERMES,
    KIMI_2,
    LLAMA_3,
    MINIMAX_1,
    MISTRAL,
    MISTRAL_LIST,
    NEMOTRON_2,
)
from mlc_llm.serve.openai.tools.thinking import ThinkTags

Template = ChatTemplate | Conversation

RULES: tuple[tuple[tuple[str, ...], Family], ...] = (
    (("<|channel|>", "to=functions."), HARMONY),
    (("<|channel|>", "<|start|>", '"functions."'), HARMONY),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL),
    (("[TOOL_CALLS]",), MISTRAL_LIST),
    (("[SYSTEM_PROMPT]", "{function_string}"), MISTRAL),
    (("<｜tool▁call▁begin｜>", "```json"), DEEPSEEK_R1),
    (("<｜tool▁call▁begin｜>",), DEEPSEEK_3_1),
    (("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"), KIMI_2),
    (("DSML", "tool_calls>"), DEEPSEEK_4),
    (("DSML", "function_calls>"), DEEPSEEK_3_2),
    (("<|START_ACTION|>", '"tool_name"'), COMMAND),
    (("Action:", '"tool_name"'), COMMAND_PLUS),
    (("<|tools_prefix|>",), APERTUS),
    (("<|function_call|>", "<|role_sep|>"), GIGACHAT_3_1),
    (("<tool_calls{}>", ":opensource"), HY_3),
    (("<function name=", "<param name="), MINICPM_5),
    (("<|tool_call|>", "<|start_of_role|>"), GRANITE_3),
    (("<TOOLCALL>",), NEMOTRON_2),
    (("<tool_calls>[",), APRIEL),
    (("<tool_calls>\\n{",), MINIMAX_1),
    (("<function=", "<|python_tag|>"), FUNCTIONARY),
    (("<minimax:tool_call>",), MINIMAX_2),
    (("<seed:tool_call>",), SEED),
    (("<tool_call>", "<arg_key>"), GLM),
    (("<tool_call>", "<function="), QWEN_CODER),
    (("<|tool_call_start|>",), LFM_2),
    (("<|tool_list_start|>",), LFM_2),
    (("List of tools: [",), LFM_2),
    (("<|tool_call>", "call:"), GEMMA_4),
    (("<<function>>",), GORILLA),
    (("<tool_call>", '"arguments"'), HERMES),
    (("<tool_call>", '\\"arguments\\"'), HERMES),
    (("<|start_header_id|>", '{"name": '), LLAMA_3),
    (("<|header_start|>", '{"name": '), LLAMA_3),
    (("{function_string}",), PYTHON),
)
"""What a template's text contains, and the family that it means then. The first fitting line
counts."""

THINK_TAGS = (
    ThinkTags("<think>", "</think>"),
    ThinkTags("[THINK]", "[/THINK]"),
    ThinkTags("<seed:think>", "</seed:think>"),
    ThinkTags("<|channel>thought\n", "<channel|>"),
    ThinkTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ThinkTags("<|inner_prefix|>", "<|inner_suffix|>"),
)
"""A template that has the second text of a line may be one of a model that thinks so."""


ANSWER_TAGS = (
    AnswerTags("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    AnswerTags("<|START_TEXT|>", "<|END_TEXT|>"),
)


def family_of(template: Template | None) -> Family | None:
    """The form of calls that a template shows. None if it shows none that is known."""
    text = source_of(template)
    fitting = (family for marks, family in RULES if all(mark in text for mark in marks))
    return next(fitting, None)


def for_tools(template: Template | None, tools: Sequence[object] | None) -> Template | None:
    """The template of a chat with these tools: the model's own one for tools, if it has one.

    One whose calls have no known form is not taken: its tools would stand in texts, and the default
    one has places for these.
    """
    other = template.tool_use if tools and isinstance(template, ChatTemplate) else None
    return template if family_of(other) is None else other


def think_tags_of(template: Template | None) -> ThinkTags | None:
    """How a model of this template thinks. None if it does not, as far as the template shows."""
    text = source_of(template)
    if writes_channels(template):
        return None
    if isinstance(template, Conversation) and template.strip_reasoning_in_history:
        return THINK_TAGS[0]
    return next((tags for tags in THINK_TAGS if tags.end in text), None)


def answer_tags_of(template: Template | None) -> AnswerTags | None:
    """What a model of this template writes around the text of its answers. None: nothing."""
    text = source_of(template)
    return next((tags for tags in ANSWER_TAGS if tags.begin in text), None)


def writes_channels(template: Template | None) -> bool:
    """Whether a model of this template writes messages in channels, as gpt-oss does."""
    return family_of(template) is HARMONY


def source_of(template: Template | None) -> str:
    """All text of a template."""
    if isinstance(template, Conversation):
        parts = (template.system_template, *template.roles.values(), template.role_empty_sep)
        return "\n".join([*parts, *template.role_templates.values(), *template.seps])
    return "" if template is None else template.source


def has_place_for_tools(template: Template) -> bool:
    """Whether a template shows tools to the model."""
    if isinstance(template, Conversation):
        return "{function_string}" in source_of(template)
    return re.search(r"\btools\b", template.source) is not None


def shows_calls(template: Template) -> bool:
    """Whether a template shows past calls to the model."""
    return isinstance(template, ChatTemplate) and "tool_calls" in template.source
