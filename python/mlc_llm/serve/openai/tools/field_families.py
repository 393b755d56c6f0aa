"""Families whose arguments are written one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial

from mlc_llm.protocol.messages import arguments_value
from mlc_llm.record import record
from mlc_llm.serve.openai.tools.family import Function, History
from mlc_llm.serve.openai.tools.field_rules import FieldRules
from mlc_llm.serve.openai.tools.fields import FieldForm, ValueKind
from mlc_llm.serve.openai.tools.form_grammar import CallRules
from mlc_llm.serve.openai.tools.lark import Split
from mlc_llm.serve.openai.tools.layout import CallLayout
from mlc_llm.serve.openai.tools.layout_rules import Body, layout_rules
from mlc_llm.serve.openai.tools.read_fields import FieldsBody
from mlc_llm.serve.openai.tools.read_layout import LayoutReader


@record()
class FieldFamily:
    """Implements `Family`."""

    name: str
    layout: CallLayout
    form: FieldForm
    history: History = field(default_factory=partial(History, objects=True))

    def rules(self, functions: Sequence[Function], split: Split, *, parallel: bool) -> CallRules:
        def body(function: Function, number: int) -> Body:
            return FieldRules(self.form, function, number, split).body()

        return layout_rules(self.layout, functions, split, parallel=parallel, body=body)

    def reader(self, functions: Sequence[Function]) -> LayoutReader:
        schemas = {one.name: one.schema for one in functions}

        def body(name: str) -> FieldsBody:
            return FieldsBody(self.form, schemas[name])

        return LayoutReader(self.layout, list(schemas), body)

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        """Texts are written as they are, where the format has them so."""
        return self.layout.joined([(name, self._fields(arguments)) for name, arguments in calls])

    def _fields(self, arguments: str) -> str:
        """The arguments one by one. What is no object, of a call that was cut say, stays as it
        is."""
        values, form = arguments_value(arguments), self.form
        if not isinstance(values, Mapping):
            return arguments
        free = {"type": "string"}
        return form.comma.join(
            form.key_begin
            + name
            + form.behind_key(ValueKind.RAW if isinstance(value, str) else ValueKind.JSON)
            + form.written(free if isinstance(value, str) else {}, value)
            + form.after
            for name, value in values.items()
        )


_PARAMETER = partial(FieldForm, key_begin="<parameter=")

QWEN_CODER = FieldFamily(
    "qwen3-coder",
    CallLayout(
        mark="<tool_call>",
        first="\n<function=",
        middle=">\n",
        last="</function>\n</tool_call>",
        again="\n<tool_call>\n<function=",
    ),
    _PARAMETER(key_end=">\n", value_end="\n</parameter>", raw=("", "\n</parameter>"), after="\n"),
)

SEED = FieldFamily(
    "seed-oss",
    CallLayout(
        mark="<seed:tool_call>",
        first="\n<function=",
        middle=">\n",
        last="</function>\n</seed:tool_call>",
        again="\n<seed:tool_call>\n<function=",
    ),
    _PARAMETER(key_end=">", value_end="</parameter>", raw=("", "</parameter>"), after="\n"),
)

GLM = FieldFamily(
    "glm",
    CallLayout(
        mark="<tool_call>",
        first="",
        middle="\n",
        last="</tool_call>",
        again="\n<tool_call>",
        opens="<",
    ),
    FieldForm(
        key_begin="<arg_key>",
        key_end="</arg_key>\n<arg_value>",
        value_end="</arg_value>",
        raw=("", "</arg_value>"),
        after="\n",
    ),
)

MINIMAX_2 = FieldFamily(
    "minimax2",
    CallLayout(
        mark="<minimax:tool_call>",
        first='\n<invoke name="',
        middle='">\n',
        last="</invoke>\n",
        again='<invoke name="',
        close="</minimax:tool_call>",
    ),
    FieldForm(
        key_begin='<parameter name="',
        key_end='">',
        value_end="</parameter>",
        raw=("", "</parameter>"),
        after="\n",
    ),
)


def _dsml(name: str, block: str) -> FieldFamily:
    """DeepSeek's markup. block: the name of what is around all calls."""
    tag = "｜DSML｜"
    value_end = f"</{tag}parameter>"
    layout = CallLayout(
        mark=f"<{tag}{block}>",
        first=f'\n<{tag}invoke name="',
        middle='">\n',
        last=f"</{tag}invoke>",
        again=f'\n<{tag}invoke name="',
        close=f"\n</{tag}{block}>",
    )
    form = FieldForm(
        key_begin=f'<{tag}parameter name="',
        key_end='" string="true">',
        key_end_json='" string="false">',
        value_end=value_end,
        raw=("", value_end),
        after="\n",
    )
    return FieldFamily(name, layout, form)


DEEPSEEK_3_2 = _dsml("deepseek-v3.2", "function_calls")
DEEPSEEK_4 = _dsml("deepseek-v4", "tool_calls")

_HY_CALL = "\n<tool_call:opensource>"
HY_3 = FieldFamily(
    "hy3",
    CallLayout(
        mark="<tool_calls:opensource>",
        first=_HY_CALL,
        middle="<tool_sep:opensource>\n",
        last="</tool_call:opensource>",
        again=_HY_CALL,
        close="\n</tool_calls:opensource>",
    ),
    FieldForm(
        key_begin="<arg_key:opensource>",
        key_end="</arg_key:opensource>\n<arg_value:opensource>",
        value_end="</arg_value:opensource>",
        raw=("", "</arg_value:opensource>"),
        after="\n",
    ),
)

MINICPM_5 = FieldFamily(
    "minicpm5",
    CallLayout(
        mark='<function name="',
        first="",
        middle='">',
        last="</function>",
        again='\n<function name="',
    ),
    FieldForm(
        key_begin='<param name="',
        key_end='"><![CDATA[',
        key_end_json='">',
        value_end="</param>",
        raw=("", "]]></param>"),
    ),
)
"""Texts always stand in CDATA. The model itself leaves that out of short ones."""

_PYTHON = FieldForm(key_begin="", key_end="=", value_end="", comma=", ", words=True)

LFM_2 = FieldFamily(
    "lfm2",
    CallLayout(
        mark="<|tool_call_start|>",
        first="[",
        middle="(",
        last=")",
        again=", ",
        close="]<|tool_call_end|>",
    ),
    _PYTHON,
)

GORILLA = FieldFamily(
    "gorilla",
    CallLayout(mark="<<function>>", first="", middle="(", last=")", again="<<function>>"),
    _PYTHON,
)

GEMMA_4 = FieldFamily(
    "gemma4",
    CallLayout(
        mark="<|tool_call>",
        first="call:",
        middle="{",
        last="}<tool_call|>",
        again="<|tool_call>call:",
    ),
    FieldForm(key_begin="", key_end=":", value_end="", raw=('<|"|>', '<|"|>'), comma=","),
)

PYTHON = FieldFamily(
    "python",
    CallLayout(mark="[", first="", middle="(", last=")", again=", ", close="]", only_at_start=True),
    _PYTHON,
)
"""Of named templates that show functions, as MLC LLM reads their answers."""
