"""Templates in the manner of real models, and conversations to render with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

RENDERED = Path(__file__).with_name("oracle_rendered.json")

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

ALTERNATING = """{{ bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim + '\\n\\n' %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set rest = messages %}
{%- endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<start_of_turn>' + role + '\\n' + (system if loop.first else '') }}
    {{- message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""

TOOLS = """{% macro call(one) -%}
{% set call = {'name': one.function.name, 'arguments': one.function.arguments} %}
<tool_call>{{ call | tojson }}</tool_call>
{%- endmacro %}
{% if tools %}
# Tools
{% for tool in tools %}
    {{ tool | tojson(indent=2) }}
{% endfor %}
{% endif %}
{% set ns = namespace(users=0, last='') %}
{% for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {% if message.role == 'user' %}
        {% set ns.users = ns.users + 1 %}
    {% endif %}
    {% if ns.users > 3 %}{% break %}{% endif %}
[{{ message.role | upper }}] {{ message.content or '' }}
    {% for one in message.tool_calls or [] %}
{{ call(one) }}
    {% endfor %}
    {% if message.role == 'assistant' %}
{% generation %}{{ eos_token }}{% endgeneration %}

    {% endif %}
{% endfor %}
users: {{ ns.users }}
{% if add_generation_prompt is defined and add_generation_prompt %}[ASSISTANT]{% endif %}
"""

REASONING = """{%- for message in messages -%}
    {%- set content = message.content -%}
    {%- if message.role == 'assistant' and '</think>' in content -%}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
    {%- endif -%}
    <|{{ message.role }}|>{{ content }}<|end|>{{ '\\n' if not loop.last }}
{%- endfor -%}
{{ '\\n<|assistant|>' if add_generation_prompt }}"""

ODDITIES = """{% for message in messages %}
  {%- for key, value in message.items() | sort %}
    {{ key }}={{ value | string | truncate(40) | replace('<', '{') }}
  {%- endfor %}
{% endfor %}
{{ messages | map(attribute='role') | join(',') }} {{ messages | length }}
{{ [1, 2.5, none] | tojson }}
{{ dict(a=1)['a'] }} {{ range(3) | list }} {{ 'é<>&"' | tojson }}
{{ "x" if documents is none else "y" }}
{# a comment #}
    {{- tools is defined and tools is not none }}
"""

TEMPLATES = {
    "chatml": CHATML,
    "alternating": ALTERNATING,
    "tools": TOOLS,
    "reasoning": REASONING,
    "oddities": ODDITIES,
}

_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Today\'s weather <b>&</b> "more" – 天気',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def _says(*texts: str, system: str | None = None) -> list[dict[str, Any]]:
    """A conversation in turns, the user first."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return first + [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def conversations() -> list[dict[str, Any]]:
    """Keyword arguments of a rendering."""
    called = {
        "function": {"name": "weather", "arguments": {"city": "Zürich <&>"}},
        "type": "function",
    }
    return [
        {"messages": _says("Why is the sky blue?")},
        {"messages": _says("Hi", system="  Be brief.\n")},
        {"messages": _says("Hi", "Hello!\n", "  How are you?  "), "add_generation_prompt": False},
        {"messages": _says("a", "<think>\nhm</think>\n\nb", "c", "d", "e", system="s")},
        {"messages": [*_says("x"), *_says("y")]},
        {"messages": _says("'quotes' \"and\" <tags> & 日本語 😀 \\ {{ not }} {% a %}")},
        {
            "messages": [
                *_says("weather?"),
                {"role": "assistant", "content": "", "tool_calls": [called]},
                {"role": "tool", "content": '{"t": 20}', "name": "weather"},
            ],
            "tools": [_TOOL],
        },
        {"messages": _says("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")},
    ]
