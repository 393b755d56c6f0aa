"""What the answer to one chat request looks like, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import ContextLengthExceeded
from mlc_llm.images.reader import ImageReader
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.openai.chat import ChatPrompt, rendered_chat
from mlc_llm.serve.openai.model import ChatModel
from mlc_llm.serve.openai.tools.answer_reader import AnswerReader
from mlc_llm.serve.openai.tools.answer_tags import TagRemover
from mlc_llm.serve.openai.tools.families import (
    answer_tags_of,
    for_tools,
    think_tags_of,
    writes_channels,
)
from mlc_llm.serve.openai.tools.family import Function
from mlc_llm.serve.openai.tools.form_grammar import Thoughts, answer_grammar
from mlc_llm.serve.openai.tools.harmony import message_rules
from mlc_llm.serve.openai.tools.history import call_family
from mlc_llm.serve.openai.tools.thinking import Opening, ThinkReader, opening_of
from mlc_llm.serve.openai.tools.tool_schema import arguments_schema
from mlc_llm.serve.openai.tools.variables import template_variables
from mlc_llm.serve.request import Request
from mlc_llm.tokenizers import Tokenizer


class ChatForm:
    """One chat request: its prompt, the grammar of its answers, and their readers.

    `engine_request` is called before the first `reader`, since the end of the prompt says whether
    an answer begins with thoughts.
    """

    def __init__(self, request: ChatCompletionRequest, model: ChatModel) -> None:
        self._request, self._model = request, model.named(request.model)
        self._functions = _functions(request)
        template = for_tools(model.template, request.usable_tools)
        self._family = call_family(template)
        self._tags = think_tags_of(template)
        self._answer_tags = answer_tags_of(template)
        self._has_channels = writes_channels(template)
        self._opening = Opening.BEFORE

    def engine_request(self, request_id: str, config: GenerationConfig) -> Request:
        """The request to the engine. config: of the request, over the model's defaults. Raises like
        `request_prompt`, and `UserError` for an encoder."""
        model = self._model
        if config.debug_config.special_request is not None:
            return Request(request_id, [], config, model.load_id)
        model.check_writes()
        prompt = request_prompt(
            self._request,
            tokenizer=model.tokenizer,
            template=model.template,
            context=model.context,
            images=model.images,
        )
        if self._tags is not None:
            self._opening = opening_of(prompt.end, self._tags)
        return Request(
            request_id,
            prompt.inputs(),
            self._with_grammar(config),
            model.load_id,
            adapter=model.adapter,
        )

    def reader(self) -> AnswerReader | None:
        """A reader for one choice. None if all its text is the answer."""
        if self._has_channels:
            return AnswerReader(None, self._family.reader(self._functions))
        if self._tags is None and self._answer_tags is None and not self._functions:
            return None
        thinking = None if self._tags is None else ThinkReader(self._tags, self._opening)
        calls = self._family.reader(self._functions) if self._functions else None
        tags = None if self._answer_tags is None else TagRemover(self._answer_tags)
        return AnswerReader(thinking, calls, tags)

    def _with_grammar(self, config: GenerationConfig) -> GenerationConfig:
        request, split = self._request, self._model.tokenizer.split_control
        calls = None
        if self._functions:
            # A tool that is chosen by name is called once.
            parallel = request.parallel_tool_calls is not False and not request.chosen_tool
            calls = self._family.rules(self._functions, split, parallel=parallel)
        thoughts = None if self._tags is None else Thoughts(self._tags, self._opening)
        wanted = config.response_format
        must_call = bool(self._functions) and request.must_call
        channels = message_rules(split) if self._has_channels else None
        form = answer_grammar(
            calls, thoughts, wanted, split, must_call=must_call, channels=channels,
            tags=self._answer_tags,
        )  # fmt: skip
        return config if form is wanted else config.model_copy(update={"response_format": form})


def _functions(request: ChatCompletionRequest) -> Sequence[Function]:
    places = {tool.function.name: i for i, tool in enumerate(request.tools or ())}
    found = []
    for one in request.usable_tools:
        name, strict = one.function.name, bool(one.function.strict)
        field = f"tools[{places[name]}].function.parameters"
        schema = arguments_schema(one.function.parameters, field, strict=strict)
        found.append(Function(name, schema, field))
    return found


def request_prompt(
    request: ChatCompletionRequest,
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | Conversation | None,
    context: int,
    images: ImageReader | None = None,
) -> ChatPrompt:
    """The conversation, up to the place where the assistant's answer begins.

    Raises like `rendered_chat`, and `ContextLengthExceeded` for a prompt that leaves no room for an
    answer in `context` tokens.
    """
    template = for_tools(template, request.usable_tools)
    variables = template_variables(
        template, request.chat_template_kwargs or {}, request.reasoning_effort
    )
    prompt = rendered_chat(
        [message.model_dump() for message in request.messages],
        tokenizer=tokenizer,
        template=template,
        tools=[tool.model_dump(exclude_none=True) for tool in request.usable_tools],
        max_tokens=context,
        variables=variables,
        images=images,
    )
    if prompt.length >= context:
        raise ContextLengthExceeded(prompt.length, context)
    return prompt
