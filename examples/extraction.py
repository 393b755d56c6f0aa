"""Many texts to JSON that follows a schema, in one batch."""

import json

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine

TEXTS = [
    "Maria Silva, 34, moved from Porto to Lyon last year.",
    "The oldest member of the club is Kenji Mori of Osaka. He is 81.",
    "Ada is nine years old and lives in Graz.",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "city": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "city", "age"],
    "additionalProperties": False,
}

engine = SyncMLCEngine(model=None)  # the default model; or a .gguf file
question = "Give the name, the city and the age of the person as JSON.\n\n"
prompts = [engine.chat_prompt(question + text) for text in TEXTS]
config = GenerationConfig(
    temperature=0, max_tokens=100, response_format={"type": "json_object", "schema": SCHEMA}
)
answers = engine.generate(prompts, config)  # all of them together
for (text,), (reason,) in zip(answers.texts, answers.finish_reasons, strict=True):
    if reason == "stop":  # whole, so it follows the schema
        print(json.loads(text))
    else:  # "length": max_tokens was too small, and the JSON has no end
        print(f"cut ({reason}): {text}")
