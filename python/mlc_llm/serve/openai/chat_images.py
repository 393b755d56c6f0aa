"""The images of a chat: where its template has them, and which tokens stand around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import ContextLengthExceeded, InvalidField, UnsupportedModel
from mlc_llm.images.picture import Picture
from mlc_llm.images.reader import ImageReader
from mlc_llm.images.shared_time import SharedTime
from mlc_llm.protocol.messages import GivenMessage, TemplateMessage
from mlc_llm.tokenizers import Tokenizer

_MARKS = [chr(point) for point in range(0xE000, 0xE100)]
"""Private-use characters."""


def free_mark(messages: Sequence[GivenMessage]) -> str:
    """A character that no text of the messages has. Raises InvalidField."""
    texts = list(_texts(messages))
    found = next((one for one in _MARKS if not any(one in text for text in texts)), None)
    if found is None:
        raise InvalidField("messages", "...", "the texts use all private characters")
    return found


def wants_parts(template: ChatTemplate) -> bool:
    """Whether a template reads no texts, but lists of texts and images alone (SmolVLM)."""
    return "['content'][0]['type']" in template.source and " is string" not in template.source


def with_parts(
    messages: Sequence[TemplateMessage], mark: str, *, always: bool
) -> list[TemplateMessage]:
    """The messages as templates read them that have a place for images: a text with marks becomes a
    list of texts and images. always: any other text becomes a list too."""
    return [_with_parts(one, mark, always) for one in messages]


def with_images(
    pieces: Sequence[str | int],
    urls: Sequence[tuple[str, str]],
    reader: ImageReader,
    tokenizer: Tokenizer,
    max_tokens: int | None,
) -> tuple[list[str | int], tuple[Picture, ...]]:
    """The rendered text with the tokens that stand for images, and the pictures: -1 is the place of
    the first one, -2 that of the next one. urls: with their fields.

    Raises InvalidField for an image that cannot be read, or not in the time that all of them have,
    `ContextLengthExceeded` for more than fit into `max_tokens`, UnsupportedModel if the template
    has no place for images.
    """
    if max_tokens is not None and len(urls) * reader.tokens >= max_tokens:
        raise ContextLengthExceeded(len(urls) * reader.tokens, max_tokens)
    place = tokenizer.special_tokens[reader.mark]
    if pieces.count(place) != len(urls):
        words = f"the model's chat template writes {pieces.count(place)} places for {len(urls)}"
        raise UnsupportedModel(f"{words} images")
    found, pictures, left = list[str | int](), list[Picture](), iter(urls)
    clock = SharedTime(reader.limits.all_seconds)
    for piece in pieces:
        if piece != place:
            found.append(piece)
            continue
        field, url = next(left)
        with clock.step(reader, field) as timed:
            file = timed.fetched(url, field)
        with clock.step(reader, field) as timed:
            parts = timed.pieces(file, field)
        for part in parts:
            if isinstance(part, str):
                found += tokenizer.split_control(part)
                continue
            pictures.append(part)
            found.append(-len(pictures))
    return found, tuple(pictures)


def _with_parts(message: TemplateMessage, mark: str, always: bool) -> TemplateMessage:
    content = message["content"]
    if content is None or (mark not in content and not always):
        return message
    parts: list[dict[str, str]] = []
    for i, text in enumerate(content.split(mark)):
        parts += [{"type": "image"}] if i else []
        parts += [{"type": "text", "text": text}] if text else []
    return cast("TemplateMessage", {**message, "content": parts})


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
