"""The one tree of errors.

    MLCError
    ├── UserError (also ValueError)     the caller can correct it; the message is one clear line
    │   ├── InvalidField                names the field, the value and what is allowed
    │   │   └── MissingKey              a required key is absent
    │   ├── ContextLengthExceeded       the prompt cannot fit the model's context window
    │   ├── ModelNotFound               no file at this path, or a download failed
    │   ├── ModelFileError              a broken, truncated or hostile model file
    │   ├── UnsupportedModel            a valid file that this version cannot run
    │   ├── UnusableDevice              a GPU, its driver, its memory or a package for it is missing
    │   └── CacheError                  the cache folder cannot be written or is full
    ├── CompileError                    TVM could not build the model library
    ├── DeviceFailed                    a call of a GPU's driver failed; the GPU may be lost
    ├── RequestError                    one request failed; the engine goes on
    │   └── TransferRefused             KV pages of another engine cannot be taken over
    └── EngineDead                      the engine stopped; all waiting and later requests get this

`assert` is only for bugs of this package.
"""

from __future__ import annotations


def one_line(error: BaseException) -> str:
    """The words of a library's error, 200 characters at most, for a message of ours."""
    return " ".join(str(error).split())[:200]


class MLCError(Exception):
    """Base class of all errors that this package raises on purpose. They can be copied, and sent to
    another process."""

    def __reduce__(self) -> tuple[object, ...]:
        """An exception is made anew of its message, which is not what each class here takes."""
        return _restored, (type(self), self.args, _sendable(self.__dict__))


def _restored(kind: type[MLCError], args: tuple[object, ...], values: dict[str, object]) -> object:
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


def _sendable(values: dict[str, object]) -> dict[str, object]:
    """The same, with its text in place of what another process may not know."""
    return {name: one if _is_plain(one) else repr(one) for name, one in values.items()}


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(one) for key, one in value.items())
    return value is None or isinstance(value, (str, bytes, int, float))


class UserError(MLCError, ValueError):
    """A value from the caller is wrong. The message says which one and what to do."""


class InvalidField(UserError):
    """A field has a value that is not allowed."""

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

    `prompt_tokens` is exact. With `at_least` it is a lower bound, because the text was not
    tokenised.
    """

    def __init__(
        self, prompt_tokens: int, limit: int, *, at_least: bool = False, answer: int = 1
    ) -> None:
        """answer: tokens that are left for the answer at least; 0 where there is none."""
        # Clients search for exactly these sentences.
        size = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
        super().__init__(
            f"This model's maximum context length is {limit} tokens. "
            f"Request prompt has {size} tokens in total, "
            f"larger than the model input length limit {limit - answer}."
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit
        self.at_least = at_least


class ModelNotFound(UserError):
    """There is no model at the path or address that the caller named."""


class ModelFileError(UserError):
    """A model file is broken. The message names the file and the broken part."""


class UnsupportedModel(UserError):
    """The file is valid, but its architecture or a tensor type is not supported."""


class UnusableDevice(UserError):
    """A device cannot compute. The message says what is missing and what to do."""


class CacheError(UserError):
    """The cache folder is read-only, full, or unusable for another reason."""


class CompileError(MLCError):
    """The model library could not be built. The message has the end of the compiler's message."""


class DeviceFailed(MLCError):
    """A call of a GPU's driver failed. The GPU may have lost everything that lies on it."""


class RequestError(MLCError):
    """One request failed. The engine and the other requests go on."""


class TransferRefused(RequestError):
    """KV pages of another engine cannot be taken over. Computing their tokens is always right."""


class EngineDead(MLCError):
    """The engine cannot go on. All waiting and later requests get this error."""


def forked(process: int) -> MLCError:
    """The error for an engine of another process, whose id is `process`."""
    return MLCError(
        f"this engine belongs to process {process} and cannot be used in a forked one; make the "
        "engine after the fork"
    )
