"""The model calls a function, and its result goes into the next turn."""

import json
from typing import Any

from mlc_llm import MLCEngine

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 40},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    },
}


def get_weather(city: str, unit: str) -> str:
    return f"{city}: 21 degrees {unit}, sunny"


messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
with MLCEngine() as engine:  # the default model is small, so the call is required
    asked = engine.chat.completions.create(
        messages=messages, tools=[WEATHER], tool_choice="required", temperature=0,
        parallel_tool_calls=False,
    )  # fmt: skip
    message = asked.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or []:
        arguments = json.loads(call.function.arguments)  # they fit the schema
        result = get_weather(**arguments)
        print(f"{call.function.name}({arguments}) -> {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = engine.chat.completions.create(
        messages=messages, tools=[WEATHER], tool_choice="none", temperature=0, max_tokens=40
    )
    print("answer:", answer.choices[0].message.content)
