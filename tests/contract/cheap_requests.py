"""Makes the requests of schemathesis cheap: a hook, which it loads by SCHEMATHESIS_HOOKS.

An answer without a limit of tokens fills the context of the model. That takes minutes, and no check
is about it. Only numbers that the server would follow are changed.
"""

from __future__ import annotations

from typing import Any

import schemathesis

TOKENS, ANSWERS = 16, 2
REFUSED_N = 128
"""A larger n is refused."""
LIMITS = {
    "chat/completions": ("max_tokens", "max_completion_tokens"),
    "completions": ("max_tokens",),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
    "api/chat": ("num_predict",),
    "api/generate": ("num_predict",),
}
"""What a path ends with, and the fields that limit its tokens. Ollama's are in `options`."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Bound the answers of a request."""
    names = next((names for end, names in LIMITS.items() if case.path.endswith(f"/{end}")), ())
    fields = case.body
    if "num_predict" in names and isinstance(fields, dict):
        case.body["options"] = fields = fields.get("options") or {}
    if not isinstance(fields, dict):
        return
    for name in names:
        given = fields.get(name)
        if given is None or _is_beyond(given, TOKENS) or (name == "num_predict" and given == -1):
            fields[name] = TOKENS
    if _is_beyond(fields.get("n"), ANSWERS) and fields["n"] <= REFUSED_N:
        fields["n"] = ANSWERS


def _is_beyond(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > most
