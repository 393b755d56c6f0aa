"""Families whose arguments are JSON objects."""

from __future__ import annotations

from mlc_llm.serve.openai.tools.family import History
from mlc_llm.serve.openai.tools.layout import CallLayout
from mlc_llm.serve.openai.tools.layout_family import LayoutFamily
from mlc_llm.serve.openai.tools.matching import NUMBER

_NAME, _ARGUMENTS = '{"name": "', '", "arguments": '

HERMES = LayoutFamily(
    "hermes",
    CallLayout(
        mark="<tool_call>",
        first="\n" + _NAME,
        middle=_ARGUMENTS,
        last="}\n</tool_call>",
        again="\n<tool_call>\n" + _NAME,
    ),
)

LLAMA_3 = LayoutFamily(
    "llama3",
    CallLayout(mark=_NAME, first="", middle='", "parameters": ', last="}", only_at_start=True),
    History(one_call=True),
)


def _listed(name: str, mark: str, close: str, history: History | None = None) -> LayoutFamily:
    """A JSON array of calls."""
    layout = CallLayout(
        mark=mark, first="[" + _NAME, middle=_ARGUMENTS, last="}", again=", " + _NAME, close=close
    )
    return LayoutFamily(name, layout, history or History())


_NINE = History(id_chars=9)
MISTRAL_LIST = _listed("mistral-list", "[TOOL_CALLS]", "]", _NINE)
GRANITE_3 = _listed("granite3", "<|tool_call|>", "]")
NEMOTRON_2 = _listed("nemotron2", "<TOOLCALL>", "]</TOOLCALL>")
APRIEL = _listed("apriel", "<tool_calls>", "]</tool_calls>")

MISTRAL = LayoutFamily(
    "mistral",
    CallLayout(mark="[TOOL_CALLS]", first="", middle="[ARGS]", last="", again="[TOOL_CALLS]"),
    _NINE,
)

MINIMAX_1 = LayoutFamily(
    "minimax1",
    CallLayout(
        mark="<tool_calls>",
        first="\n" + _NAME,
        middle=_ARGUMENTS,
        last="}\n",
        again=_NAME,
        close="</tool_calls>",
    ),
)

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEP = "<｜tool▁sep｜>"

DEEPSEEK_R1 = LayoutFamily(
    "deepseek-r1",
    CallLayout(
        mark=_CALLS,
        first=_CALL + "function" + _SEP,
        middle="\n```json\n",
        last="\n```" + _CALL_END,
        again="\n" + _CALL + "function" + _SEP,
        close=_CALLS_END,
    ),
    History(text_arguments=True),
)

DEEPSEEK_3_1 = LayoutFamily(
    "deepseek-v3.1",
    CallLayout(
        mark=_CALLS, first=_CALL, middle=_SEP, last=_CALL_END, again=_CALL, close=_CALLS_END
    ),
)

FUNCTIONARY = LayoutFamily(
    "functionary",
    CallLayout(mark="<function=", first="", middle=">", last="</function>", again="<function="),
)

_KIMI_CALL = "<|tool_call_begin|>functions."
KIMI_2 = LayoutFamily(
    "kimi-k2",
    CallLayout(
        mark="<|tool_calls_section_begin|>",
        first=_KIMI_CALL,
        middle=f":{NUMBER}<|tool_call_argument_begin|>",
        last="<|tool_call_end|>",
        again=_KIMI_CALL,
        close="<|tool_calls_section_end|>",
    ),
)

_COMMAND_CALL = f'\n    {{"tool_call_id": "{NUMBER}", "tool_name": "'
COMMAND = LayoutFamily(
    "command-r7b",
    CallLayout(
        mark="<|START_ACTION|>",
        first="[" + _COMMAND_CALL,
        middle='", "parameters": ',
        last="}",
        again="," + _COMMAND_CALL,
        close="\n]<|END_ACTION|>",
    ),
)

_PLUS_CALL = '\n    {\n        "tool_name": "'
COMMAND_PLUS = LayoutFamily(
    "command-r-plus",
    CallLayout(
        mark="Action:",
        first="\n```json\n[" + _PLUS_CALL,
        middle='",\n        "parameters": ',
        last="\n    }",
        again="," + _PLUS_CALL,
        close="\n]```",
    ),
)

APERTUS = LayoutFamily(
    "apertus",
    CallLayout(
        mark="<|tools_prefix|>",
        first='[{"',
        middle='": ',
        last="}",
        again=', {"',
        close="]<|tools_suffix|>",
    ),
)

GIGACHAT_3_1 = LayoutFamily(
    "gigachat3.1",
    CallLayout(mark="<|function_call|>", first=_NAME, middle=_ARGUMENTS, last="}"),
    History(one_call=True),
)
