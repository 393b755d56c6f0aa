"""The inputs and the outputs of a request: plain values, without TVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mlc_llm.protocol import checks
from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np

    from mlc_llm.images.decoder import ImageFile
    from mlc_llm.images.picture import Picture
else:
    from mlc_llm.later_numpy import np

FinishReason = Literal["stop", "length", "tool_calls", "error", "abort", "preempt"]
"""Only the protocol layer sets `tool_calls`, and only disaggregated serving sets `preempt`."""

MAX_PROMPT_TOKENS = 2**24
"""A prompt with more ids is refused before they are copied. No context window is that long."""
MAX_URL_CHARS = 2**26


class Data:
    """One piece of a prompt."""


@record()
class TextData(Data):
    """A text. It is tokenised when the request is added.

    The name of a control token in it is ordinary text. With `special`, it is the control token.
    """

    text: str
    special: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise checks.wrong_type("TextData.text", self.text, "should be a string")
        checks.utf8("TextData.text", self.text)
        checks.boolean("TextData.special", self.special)


@record()
class TokenData(Data):
    """Token ids, used as they are. The engine checks whether the vocabulary has them."""

    token_ids: Sequence[int]

    def __post_init__(self) -> None:
        ids = checks.token_ids("TokenData.token_ids", self.token_ids, MAX_PROMPT_TOKENS)
        object.__setattr__(self, "token_ids", ids)


@record()
class ImageData(Data):
    """An image: its vectors, made by the model's tower of images, take the place of tokens.

    The tokens that a model wants around an image are the caller's; chats get them by themselves.
    The engine refuses it if its model reads no images.
    """

    image: object
    """The bytes of a PNG, JPEG, WebP, GIF or BMP file, or an RGB array uint8 [height, width, 3]."""
    embed_size: int = 0
    """Vectors of the image. 0: as many as the model makes; any other number has to be that one."""

    def __post_init__(self) -> None:
        checks.integer("ImageData.embed_size", self.embed_size, 0, MAX_PROMPT_TOKENS)
        object.__setattr__(self, "image", _decodable(self.image))

    @classmethod
    def from_url(
        cls, url: str, config: object = None, *, allow_hosts: Sequence[str] = ()
    ) -> ImageData:
        """The image at a `data:` address, or of a host among `allow_hosts`. config: what callers of
        MLC LLM give; the engine knows the sizes of its model without it. Raises InvalidField."""
        from mlc_llm.images.addresses import image_file

        return cls(image_file(checks.string("url", url, MAX_URL_CHARS), allow_hosts, field="url"))


def checked_callback(callback: object, field: str = "request_stream_callback") -> None:
    """Raises InvalidField for what cannot be called. None is no callback, and allowed here."""
    if callback is not None and not callable(callback):
        raise checks.wrong_type(field, callback, "should be a function")


def _decodable(image: object) -> Picture | ImageFile:
    """Raises InvalidField."""
    from mlc_llm.images.decoder import ImageFile
    from mlc_llm.images.picture import Picture, bitmap

    if isinstance(image, Picture | ImageFile):
        return image
    if isinstance(image, bytes | bytearray | memoryview):
        return ImageFile(bytes(image))
    as_numpy = getattr(image, "numpy", None)
    pixels = np.asarray(as_numpy() if callable(as_numpy) else image)
    if pixels.ndim == 4 and len(pixels) == 1:
        pixels = pixels[0]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        wanted = "should be the bytes of a file, or an array uint8 [height, width, 3]"
        shown = f"{type(image).__name__} {pixels.dtype} {list(pixels.shape)}"
        raise checks.refuse("ImageData.image", shown, wanted)
    return bitmap(pixels)


@dataclass
class SingleRequestStreamOutput:
    """What one sequence of a request has produced since its last output."""

    delta_token_ids: list[int]
    """New tokens that may be shown. A stop token is never among them."""
    delta_logprob_json_strs: list[str] | None
    """One JSON text for each token. None if log-probabilities were not asked for."""
    finish_reason: FinishReason | None
    """It is set in the last output of the sequence."""
    request_final_usage_json_str: str | None
    """The usage of the whole request. It comes alone, and it comes last."""
    extra_prefix_string: str
    """A text to show before the text of the tokens."""
    cut_bytes: int = 0
    """Bytes of UTF-8 to cut off the end of the sequence's text, because a stop string begins inside
    the last delta token. They are counted in the decoded text, where an unfinished character at
    the end of the token is U+FFFD (3 bytes). Without a finish reason it is 0."""
    error: str | None = None
    """The message, if the finish reason is `error`."""
    stop_str: str | None = None
    """The stop string that ended the sequence. None if something else did."""


@dataclass(slots=True)
class RequestStreamOutput:
    """What all sequences of one request have produced in a step, or the usage of the request.

    The engine core fills it, front ends read it with `unpack`. With `request_final_usage_json_str`
    the groups are empty; otherwise each group has one entry for each sequence.
    """

    request_id: str
    group_delta_token_ids: list[list[int]] = field(default_factory=list)
    group_delta_logprob_json_strs: list[list[str]] | None = None
    group_finish_reason: list[FinishReason | None] = field(default_factory=list)
    request_final_usage_json_str: str | None = None
    group_extra_prefix_string: list[str] = field(default_factory=list)
    """An empty list means an empty string for each sequence."""
    group_cut_bytes: list[int] = field(default_factory=list)
    """An empty list means 0 for each sequence."""
    error: str | None = None
    group_stop_strs: list[str | None] = field(default_factory=list)
    """An empty list means None for each sequence."""
    prompt_logprob_json_strs: list[str] | None = None
    """Of a request that wants them, once: one JSON text for each token of the prompt."""
    embedding: Sequence[float] | None = None
    """Of a request for it, with its end: the vector of the prompt, or the scores of a pair."""
    _unpacked: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        n = len(self.group_delta_token_ids)
        self.group_extra_prefix_string = self.group_extra_prefix_string or [""] * n
        self.group_cut_bytes = self.group_cut_bytes or [0] * n
        self.group_stop_strs = self.group_stop_strs or [None] * n
        self._check_shape(n)

    @classmethod
    def usage(cls, request_id: str, usage_json: str) -> RequestStreamOutput:
        """The last output of every request."""
        return cls(request_id, request_final_usage_json_str=usage_json)

    @classmethod
    def shown(cls, request_id: str, token_id: int) -> RequestStreamOutput:
        """The only sequence of a request shows a token. It is made for each token of each stream,
        and what `__post_init__` checks is so here: a third of the time."""
        one = object.__new__(cls)
        one.request_id = request_id
        one.group_delta_token_ids, one.group_finish_reason = [[token_id]], [None]
        one.group_extra_prefix_string, one.group_cut_bytes = [""], [0]
        one.group_stop_strs, one.group_delta_logprob_json_strs = [None], None
        one.request_final_usage_json_str = one.error = None
        one.prompt_logprob_json_strs = one.embedding = None
        one._unpacked = False
        return one

    @classmethod
    def finished(
        cls, request_id: str, n: int, reason: FinishReason, error: str | None = None
    ) -> RequestStreamOutput:
        """All n sequences end for the same reason, without new tokens."""
        return cls(request_id, [[] for _ in range(n)], None, [reason] * n, error=error)

    def unpack(self) -> tuple[str, list[SingleRequestStreamOutput]]:
        """(request id, one output for each sequence). An output with the usage gives one element.

        It may be called only once: the second call raises RuntimeError.
        """
        if self._unpacked:
            raise RuntimeError(f"the output of request {self.request_id!r} was unpacked before")
        self._unpacked = True
        if self.request_final_usage_json_str is not None:
            usage = self.request_final_usage_json_str
            return self.request_id, [SingleRequestStreamOutput([], None, None, usage, "")]
        return self.request_id, [self._sequence(i) for i in range(len(self.group_delta_token_ids))]

    def _sequence(self, i: int) -> SingleRequestStreamOutput:
        logprobs = self.group_delta_logprob_json_strs
        reason = self.group_finish_reason[i]
        return SingleRequestStreamOutput(
            delta_token_ids=self.group_delta_token_ids[i],
            delta_logprob_json_strs=None if logprobs is None else logprobs[i],
            finish_reason=reason,
            request_final_usage_json_str=None,
            extra_prefix_string=self.group_extra_prefix_string[i],
            cut_bytes=self.group_cut_bytes[i],
            error=self.error if reason == "error" else None,
            stop_str=self.group_stop_strs[i],
        )

    def _check_shape(self, n: int) -> None:
        """Find our own bugs: groups have one length, each token one log-probability, and the usage
        comes alone."""
        assert (n == 0) == (self.request_final_usage_json_str is not None)
        assert len(self.group_finish_reason) == len(self.group_cut_bytes) == n
        assert len(self.group_extra_prefix_string) == len(self.group_stop_strs) == n
        logprobs = self.group_delta_logprob_json_strs
        if logprobs is not None:
            assert [len(one) for one in logprobs] == [
                len(ids) for ids in self.group_delta_token_ids
            ]
