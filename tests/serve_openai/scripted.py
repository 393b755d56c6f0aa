"""A chat without a model: tokens are drawn at random under the grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, ChatCompletionResponse
from mlc_llm.serve.core.grammar.compiler import GrammarCompiler
from mlc_llm.serve.data import RequestStreamOutput, TokenData
from mlc_llm.serve.openai.answers import WholeAnswer
from mlc_llm.serve.openai.calls import chat_call
from mlc_llm.serve.openai.chunks import AnswerStream, Chunk
from mlc_llm.serve.openai.model import ChatModel
from mlc_llm.serve.request import Request
from mlc_llm.testing.byte_tokenizer import IM_END, byte_tokenizer_metadata
from mlc_llm.tokenizers import Tokenizer

CLOSING = {IM_END, *b'"]}>)'}
CONTROL = 3
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def tokenizer(*control: str) -> Tokenizer:
    """The byte tokenizer, with more control tokens."""
    metadata: dict[str, Any] = dict(byte_tokenizer_metadata())
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *control]
    kinds = metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.token_type"] = [*kinds, *[CONTROL] * len(control)]
    return Tokenizer.from_gguf_metadata(metadata)


@cache
def compiler(*control: str) -> GrammarCompiler:
    return GrammarCompiler(tokenizer(*control), tokenizer(*control).vocab_size, [IM_END])


@cache
def jinja(source: str) -> ChatTemplate:
    """One process for each template."""
    return ChatTemplate(source)


class Chat:
    """A request, as a server would answer it."""

    def __init__(
        self,
        body: Mapping[str, Any],
        template: ChatTemplate | Conversation,
        control: Sequence[str] = (),
    ) -> None:
        self.tokenizer = tokenizer(*control)
        model = ChatModel(self.tokenizer, template, GenerationConfig(), 65536, 1)
        request = ChatCompletionRequest.parse(
            {"messages": [{"role": "user", "content": "Hi"}], **body}
        )
        self.call = chat_call(request, "chat", model)
        (self.part,) = self.call.parts
        self.request: Request = self.part.make()
        self._compiler = compiler(*control)

    @property
    def prompt(self) -> str:
        (data,) = self.request.inputs
        assert isinstance(data, TokenData)
        return self.tokenizer.decode(data.token_ids)

    def draw(self, seed: int, beginning: str = "", limit: int = 3000) -> list[int] | None:
        """Tokens of an answer that begins so. None if it takes more than `limit` to end."""
        rng, tokens = np.random.default_rng(seed), []
        given = self.tokenizer.encode(beginning, special=True)
        wanted = self.request.generation_config.response_format
        if not wanted.needs_grammar:
            return given
        matcher = self._compiler.compile(wanted).matcher()
        while not matcher.is_finished:
            if len(tokens) == limit:
                return None
            mask = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little")
            choices = np.flatnonzero(mask)
            if given:
                token = given.pop(0)
                assert token in choices, (self.tokenizer.decode(tokens), beginning)
            else:
                closing = [one for one in choices if one in CLOSING]
                token = int(rng.choice(closing if closing and rng.random() < 0.3 else choices))
            if matcher.ends(token):
                break
            matcher.accept(token)
            tokens.append(token)
        return tokens

    def chunks(
        self,
        tokens: Sequence[int],
        sizes: Iterator[int] | None = None,
        reason: Any = "stop",
        stop_str: str | None = None,
    ) -> list[Chunk]:
        """The chunks of an answer of these tokens, which come in groups of these sizes. stop_str:
        ended it, and is not among the tokens."""
        stream = AnswerStream(self.tokenizer, 1, self.part.reader)
        rest, found = list(tokens), []
        while rest:
            size = 1 if sizes is None else next(sizes)
            group, rest = rest[:size], rest[size:]
            found.append(stream.put(RequestStreamOutput("chat", [group], None, [None])))
        end = RequestStreamOutput("chat", [[]], None, [reason], group_stop_strs=[stop_str])
        found.append(stream.put(end))
        usage = {"prompt_tokens": 1, "completion_tokens": len(tokens), "total_tokens": 1}
        found.append(stream.put(RequestStreamOutput.usage("chat", json.dumps(usage))))
        return [chunk for chunk in found if chunk is not None]

    def whole(
        self,
        tokens: Sequence[int],
        sizes: Iterator[int] | None = None,
        reason: Any = "stop",
        stop_str: str | None = None,
    ) -> ChatCompletionResponse:
        answer = WholeAnswer(1)
        for chunk in self.chunks(tokens, sizes, reason, stop_str):
            answer.put(chunk)
        return answer.response("chat", "m")

    def said(self, text: str, reason: Any = "stop") -> ChatCompletionResponse:
        """The answer that is read in a text of the model."""
        return self.whole(self.tokenizer.encode(text, special=True), reason=reason)
