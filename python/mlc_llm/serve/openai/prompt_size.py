"""How many tokens a prompt has, as soon as its request is made."""

from __future__ import annotations

from collections.abc import Callable

from mlc_llm.images.picture import Picture
from mlc_llm.serve.data import ImageData, TokenData
from mlc_llm.serve.openai.calls import Part
from mlc_llm.serve.request import Request


def telling_size(part: Part, tell: Callable[[int], None]) -> Part:
    """The same part. tell: gets the tokens of its prompt when its request is made, and may raise
    `UserError`."""

    def make() -> Request:
        request = part.make()
        tell(prompt_tokens(request))
        return request

    return part._replace(make=make)


class PromptSize:
    """The tokens of the prompts whose requests were made so far, for answers that begin with this
    number."""

    def __init__(self) -> None:
        self.tokens = 0

    def noting(self, part: Part) -> Part:
        """The same part, noted when its request is made."""
        return telling_size(part, self._add)

    def _add(self, tokens: int) -> None:
        self.tokens += tokens


def prompt_tokens(request: Request) -> int:
    """Tokens of a request whose prompt is tokenised, those of images included."""
    texts = sum(len(data.token_ids) for data in request.inputs if isinstance(data, TokenData))
    images = [data.image for data in request.inputs if isinstance(data, ImageData)]
    return texts + sum(one.tokens for one in images if isinstance(one, Picture))
