"""The one tree of errors.

    MLCError
    ├── UserError (also ValueError)     the caller can mend it; one clear line is all they need
    │   ├── InvalidField                names the field, the value and what is allowed
    │   │   └── MissingKey              a required key is absent
    │   ├── ContextLengthExceeded       the prompt cannot fit the model's context window
    │   ├── ModelNotFound               nothing at that path, or a download that failed
    │   ├── ModelFileError              a broken, truncated or hostile model file
    │   ├── UnsupportedModel            well formed, but not something this version can run
    │   └── CacheError                  the cache folder cannot be written or is full
    ├── CompileError                    TVM refused to build the model library
    ├── RequestError                    this one request failed; the engine goes on
    └── EngineDead                      the engine stopped; each waiting or later request gets this

`assert` is for our own bugs only.
"""

from __future__ import annotations


class MLCError(Exception):
    """Base of every error raised on purpose by this package."""


class UserError(MLCError, ValueError):
    """Something the caller gave us is wrong; the message says what and what to do."""


class InvalidField(UserError):
    """A field has a value outside what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field} = {shown} is not allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class MissingKey(InvalidField):
    """A required key is absent."""

    def __init__(self, field: str, key: str) -> None:
        super().__init__(field, None, f'key "{key}" not found')
        self.key = key


class ContextLengthExceeded(UserError):
    """The prompt leaves no room for an answer in the context window.

    `prompt_tokens` is exact, or with `at_least` a lower bound (of a text that was not tokenised).
    """

    def __init__(self, prompt_tokens: int, limit: int, *, at_least: bool = False) -> None:
        # Clients look for these very sentences. One token at least is left for the answer.
        size = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
        super().__init__(
            f"This model's maximum context length is {limit} tokens. "
            f"Request prompt has {size} tokens in total, "
            f"larger than the model input length limit {limit - 1}."
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit
        self.at_least = at_least


class ModelNotFound(UserError):
    """There is no model at the place that was named."""


class ModelFileError(UserError):
    """A model file breaks its format; the message names the file and the broken part."""


class UnsupportedModel(UserError):
    """The file is well formed but its architecture or a tensor type is not supported."""


class CacheError(UserError):
    """The cache folder is read-only, full, or otherwise unusable."""


class CompileError(MLCError):
    """The model library could not be built; carries the end of the compiler's own message."""


class RequestError(MLCError):
    """One request failed; the engine and the other requests are unharmed."""


class EngineDead(MLCError):
    """The engine cannot go on; all waiting and later requests are answered with this."""
