"""`SyncMLCEngine`: the caller steps the engine. For tests, debugging and simple batch work.

It has no thread and no OpenAI protocol. `generate` shows the whole life of its requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal
from weakref import ref

import tvm_ffi

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import data
from mlc_llm.serve.answers import ChatAnswer, Generated, RequestTexts
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.engine_calls import Inside, engine_functions
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.one_thread import OneThread
from mlc_llm.serve.opening.arguments import check_engine_config
from mlc_llm.serve.opening.bundle import ModelBundle
from mlc_llm.serve.prompts import convert_prompts_to_data
from mlc_llm.serve.request import Request
from mlc_llm.serve.sync_module import FUNCTIONS
from mlc_llm.support.interrupts import HeldInterrupts

if TYPE_CHECKING:
    import tvm

    from mlc_llm.protocol.messages import GivenMessage, GivenTool
    from mlc_llm.runtime.read_ahead import ReadAhead
    from mlc_llm.serve.openai.chat import ChatPrompt

__all__ = ["ChatAnswer", "EngineConfig", "Generated", "SyncMLCEngine", "_create_tvm_module"]

Config = GenerationConfig | Mapping[str, object]
"""A config, or a dict of its fields."""


def _create_tvm_module(
    creator: str, ffi_funcs: Sequence[str], creator_args: Sequence[object] | None = None
) -> dict[str, Callable[..., Any]]:
    """Call the TVM global function `creator`; return the named functions of the module it makes.

    They raise `MLCError` in a forked process if another thread was in one of them at the fork. At
    the end of the program they raise `EngineDead`, except in the thread that ends it.
    """
    with Inside():
        module = tvm_ffi.get_global_func(creator)(*(creator_args or []))
        return engine_functions({name: module[name] for name in ffi_funcs})


_TWO_THREADS = (
    "another thread is using this SyncMLCEngine, which serves one at a time; for several threads "
    "take mlc_llm.serve.threaded_engine.ThreadedEngine or mlc_llm.json_ffi.JSONFFIEngine"
)


class SyncMLCEngine:
    """A model and an engine for it. `step` advances it.

    `bundle` has the tokenizer, the template and the files of the model, `engine_config` the
    complete config, `longest_sequence` the most tokens of a prompt and its answer together.
    Raises `UserError` for a model, a device or a config that cannot be used. Only
    one thread may use it at a time; a call of a second one is refused. Ctrl-C is raised after a
    step and its callback, so that no step stops in the middle. `reset` works in any state.
    """

    def __init__(
        self,
        model: str | None,
        device: str | tvm.runtime.Device = "auto",
        *,
        model_lib: str | None = None,
        mode: Literal["local", "interactive", "server"] = "local",
        engine_config: EngineConfig | Mapping[str, object] | None = None,
        enable_tracing: bool = False,
        request_stream_callback: Callable[[list[data.RequestStreamOutput]], None] | None = None,
        reading: ReadAhead | None = None,
    ) -> None:
        """`model`: see `open_model`; None is the default model. `device`: "auto", "cpu" or "cuda"
        (see `detect_device`). `mode`: how many answers run at a time and how much
        memory they may take, see `help(EngineConfig)`. `engine_config`: may be a dict of its
        fields. `request_stream_callback`: gets the outputs of each step. `reading`: weights whose
        reading the caller has begun."""
        config = EngineConfig.of(engine_config)
        check_engine_config(model, model_lib, mode, config)
        data.checked_callback(request_stream_callback)
        config = replace(config, model=model, model_lib=model_lib, mode=mode)
        self._in_use = OneThread(_TWO_THREADS)
        self.trace_recorder = EventTraceRecorder() if enable_tracing else None
        self._ffi = _create_tvm_module("mlc.serve.create_engine", ffi_funcs=FUNCTIONS)
        self._callback = request_stream_callback
        callback = None if request_stream_callback is None else _callback_of(ref(self))
        self._ffi["init"](config.asjson(), device, callback, self.trace_recorder, reading)
        self.bundle: ModelBundle = self._ffi["get_model_bundle"]()
        self.tokenizer = self.bundle.tokenizer
        self.engine_config = EngineConfig.from_json(self._ffi["get_complete_engine_config"]())
        self.longest_sequence: int = self._ffi["get_longest_sequence"]()

    def generate(
        self,
        prompts: str | list[str] | list[int] | list[list[int]] | Sequence[Sequence[data.Data]],
        generation_config: Config | list[Config] | None = None,
        *,
        special: bool = False,
        adapter: str = "",
    ) -> Generated:
        """Run all prompts to their end, together: `texts, logprobs = engine.generate(...)`.

        The result also has the reason why each text ended and the usage of each prompt (see
        `Generated`). Give one config for all prompts, or a list with one for each; a config may be
        a dict of its fields. In a prompt that is a string, the name of a control token is ordinary
        text; with `special`, it is the control token. `adapter`: the name of a LoRA adapter that
        changes the model for all prompts.

        Raises `UserError` for a prompt that is refused (`ContextLengthExceeded` if it is too long)
        and `RequestError` for one that failed. After an error, and after Ctrl-C, which is raised
        between steps, no request of this call is left in the engine. Outputs of other requests go
        to the callback that was set before.
        """
        inputs = convert_prompts_to_data(prompts, special=special)
        configs = _one_config_a_prompt(generation_config, len(inputs))
        with HeldInterrupts() as held, self._in_use:
            pairs = enumerate(zip(inputs, configs, strict=True))
            made = [self.create_request(str(i), *pair, adapter=adapter) for i, pair in pairs]
            return self._run(made, held)

    def chat(
        self,
        messages: str | Sequence[GivenMessage],
        generation_config: Config | None = None,
        *,
        tools: Sequence[GivenTool] | None = None,
        tool_choice: str | Mapping[str, object] | None = None,
        adapter: str = "",
    ) -> ChatAnswer:
        """The next message of the model in a conversation, as a whole.

        `messages` and `tools` are dicts of OpenAI's shapes; a string is one message of the user.
        Append the `message` of the answer to the conversation before you ask again. Raises like
        `generate`, and `UnsupportedModel` for a model without a chat template.
        """
        config = GenerationConfig.of(generation_config)
        prompt = self.chat_data(messages, tools=tools, tool_choice=tool_choice)
        answers = self.generate([prompt], config, adapter=adapter)
        logprobs = answers.logprobs[0]
        return ChatAnswer(answers.texts[0], answers.finish_reasons[0], answers.usages[0], logprobs)

    def chat_prompt(
        self,
        messages: str | Sequence[GivenMessage],
        *,
        tools: Sequence[GivenTool] | None = None,
        tool_choice: str | Mapping[str, object] | None = None,
    ) -> list[int]:
        """Token ids of a conversation for `generate`, as the chat template of the model writes it.

        Only the template makes control tokens; their names in messages are ordinary text. Images
        have no ids: `chat_data` takes them. Raises `UserError`.
        """
        return self._prompt(messages, tools, tool_choice).token_ids

    def chat_data(
        self,
        messages: str | Sequence[GivenMessage],
        *,
        tools: Sequence[GivenTool] | None = None,
        tool_choice: str | Mapping[str, object] | None = None,
    ) -> list[data.Data]:
        """Like `chat_prompt`, for conversations that may have images."""
        return self._prompt(messages, tools, tool_choice).inputs()

    def _prompt(
        self,
        messages: str | Sequence[GivenMessage],
        tools: Sequence[GivenTool] | None,
        tool_choice: str | Mapping[str, object] | None,
    ) -> ChatPrompt:
        from mlc_llm.serve.openai.requests import conversation_prompt

        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return conversation_prompt(
            {"messages": messages, "tools": tools, "tool_choice": tool_choice},
            tokenizer=self.tokenizer,
            template=self.bundle.chat_template,
            context=self.longest_sequence,
            images=None if self.bundle.vision is None else self.bundle.vision.reader,
        )

    def create_request(
        self,
        request_id: str,
        inputs: data.Data | Sequence[data.Data],
        generation_config: Config,
        *,
        adapter: str = "",
    ) -> Request:
        """A request for `add_request`. The model's defaults fill the open fields of the config.
        `adapter`: the name of a LoRA adapter, or none."""
        config = GenerationConfig.of(generation_config)
        request: Request = self._ffi["create_request"](request_id, inputs, config.asjson())
        return replace(request, adapter=adapter) if adapter else request

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises `UserError` if it is refused."""
        with HeldInterrupts(), self._in_use:
            self._ffi["add_request"](request)

    def abort_request(self, request_id: str) -> None:
        """End a request. The callback gets its end. Nothing happens for an unknown id."""
        with HeldInterrupts(), self._in_use:
            self._ffi["abort_request"](request_id)

    def step(self) -> None:
        """Advance every running request by up to one token and call the callback."""
        with HeldInterrupts(), self._in_use:
            self._ffi["step"]()

    def load_adapter(self, name: str, source: str) -> None:
        """Load a LoRA adapter, a PEFT folder or a GGUF file, under a name for requests. The engine
        needs room for it (`max_adapters`). Raises `UserError` for one that cannot be used; running
        requests go on."""
        with HeldInterrupts(), self._in_use:
            self._ffi["load_adapter"](name, source)

    def drop_adapter(self, name: str) -> None:
        """Requests that run with the adapter go on to their end; no other one gets it. Raises
        `InvalidField` for a name that is not there."""
        with HeldInterrupts(), self._in_use:
            self._ffi["drop_adapter"](name)

    def reset(self) -> None:
        """Abort all requests and clear all state and metrics."""
        with HeldInterrupts(), self._in_use:
            self._ffi["reset"]()

    def metrics(self) -> EngineMetrics:
        """The engine's numbers at this moment."""
        return EngineMetrics(json.loads(self._ffi["json_metrics"]()))

    def _run(self, requests: list[Request], held: HeldInterrupts) -> Generated:
        """Run requests to their end. None of them is left when this returns or raises.

        held: the interrupts; they are let through between steps.
        """
        before = self._ffi["get_request_stream_callback"]()
        texts = RequestTexts(self.tokenizer, requests, context=self.longest_sequence, others=before)
        with ExitStack() as at_the_end:
            at_the_end.callback(self._ffi["set_request_stream_callback"], before)
            self._ffi["set_request_stream_callback"](texts.put)
            for request in requests:
                name = request.request_id
                if not self._ffi["has_request"](
                    name
                ):  # else it belongs to another caller, and adding it is refused
                    at_the_end.callback(self.abort_request, name)
                self.add_request(request)
                held.let_through()
            for request in requests:
                while self._ffi["has_request"](request.request_id):
                    self.step()
                    held.let_through()
        return texts.results()


def _callback_of(engine: ref[SyncMLCEngine]) -> Callable[[list[data.RequestStreamOutput]], None]:
    """Calls the engine's callback, which may know the engine: where the engine's functions held it,
    Python would not see the circle, and the model would stay for ever."""

    def call(outputs: list[data.RequestStreamOutput]) -> None:
        found = engine()
        if found is not None and found._callback is not None:
            found._callback(outputs)

    return call


def _one_config_a_prompt(
    config: Config | list[Config] | None, count: int
) -> list[GenerationConfig]:
    if not isinstance(config, (list, tuple)):
        return [GenerationConfig.of(config)] * count
    if len(config) != count:
        raise InvalidField(
            "generation_config", f"<{len(config)} configs>", f"give one, or one a prompt: {count}"
        )
    return [GenerationConfig.of(one, f"generation_config[{i}]") for i, one in enumerate(config)]
