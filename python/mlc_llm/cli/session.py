"""One model, one request at a time: open it, answer with a callback for text, stop on Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from mlc_llm.cli.interrupt import catch_interrupt
from mlc_llm.errors import ContextLengthExceeded, RequestError, UnsupportedModel, UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.compute_thread import computing_here
from mlc_llm.serve.answers import Usage
from mlc_llm.serve.data import Data, FinishReason, RequestStreamOutput, TokenData
from mlc_llm.serve.request import NO_TEXT, Request
from mlc_llm.serve.stream import SequenceText
from mlc_llm.tokenizers import Tokenizer

if TYPE_CHECKING:
    from mlc_llm.cli.answers import Answer, Timings
    from mlc_llm.protocol.messages import GivenMessage
    from mlc_llm.serve.opening.bundle import ModelBundle


class Engine(Protocol):
    """The methods of `SyncMLCEngine` that a session needs."""

    def create_request(
        self, request_id: str, inputs: Data | list[Data], generation_config: GenerationConfig
    ) -> Request: ...

    def add_request(self, request: Request) -> None: ...

    def abort_request(self, request_id: str) -> None: ...

    def step(self) -> None: ...


class Session:
    """An open model.

    outputs: the list to which the engine's stream callback appends. window: the most tokens that a
    prompt and its answer have together. load_s: the seconds that opening has taken.
    """

    def __init__(
        self,
        engine: Engine,
        model: ModelBundle,
        outputs: list[RequestStreamOutput],
        *,
        window: int,
        load_s: float = 0.0,
        adapter: str = "",
    ) -> None:
        self.model = model
        self.window = window
        self._engine = engine
        self._outputs = outputs
        self._load_s, self._adapter = load_s, adapter
        self._requests = 0

    def chat_ids(self, messages: Sequence[GivenMessage]) -> list[int]:
        """Token ids of a conversation, up to the place of the next answer.

        Raises `UnsupportedModel` for a model that cannot chat, `UserError` for an encoder,
        `InvalidField` for messages that its template refuses, `ContextLengthExceeded` for texts
        that are clearly too long.
        """
        from mlc_llm.serve.openai.chat import chat_prompt

        template = self.model.chat_template
        if template is None and self.model.is_encoder:
            raise UserError(NO_TEXT)
        if template is None:
            raise UnsupportedModel(
                f"{self.model.name} has no chat template and can only continue a text: "
                "mlc_llm generate --raw"
            )
        return chat_prompt(
            list(messages),
            tokenizer=self.model.tokenizer,
            template=template,
            max_tokens=self.window,
        )

    def raw_ids(self, text: str) -> list[int]:
        """Token ids of `text` itself; the names of control tokens in it are control tokens."""
        tokenizer = self.model.tokenizer
        tokenizer.check_size([text], self.window)
        first = [tokenizer.bos_token_id] if tokenizer.add_bos else []
        return [*(id for id in first if id is not None), *tokenizer.encode(text, special=True)]

    def answer(
        self,
        prompt_ids: list[int],
        config: GenerationConfig,
        on_text: Callable[[str], None] = lambda text: None,
    ) -> Answer:
        """Run one request to its end. `on_text` gets each piece of text at once.

        Ctrl-C ends it early, with `abort`. Raises `ContextLengthExceeded` before anything runs,
        `RequestError` if the engine ends the request with an error, and the errors of `on_text`.
        After an error, the request is no longer in the engine.
        """
        if len(prompt_ids) >= self.window:
            raise ContextLengthExceeded(len(prompt_ids), self.window)
        self._requests += 1
        request_id = f"cli-{self._requests}"
        request = self._engine.create_request(request_id, [TokenData(prompt_ids)], config)
        if self._adapter:
            request = replace(request, adapter=self._adapter)
        run = _Run(self.model.tokenizer, time.perf_counter())
        try:
            self._run(request, run, on_text)
        except BaseException:
            self._engine.abort_request(request_id)
            self._outputs.clear()
            raise
        return self._answer(run)

    def why_cut(self, answer: Answer) -> str:
        """The limit that ended an answer with the finish reason `length`."""
        if (answer.total_tokens or 0) >= self.window:
            return f"stopped: the context of {self.window} tokens is full"
        return f"stopped at {answer.completion_tokens} tokens; --max-tokens sets this limit"

    def _run(self, request: Request, run: _Run, on_text: Callable[[str], None]) -> None:
        with catch_interrupt() as interrupt:
            self._engine.add_request(request)
            while not run.ended:
                if interrupt and not run.aborting:
                    run.aborting = True
                    self._engine.abort_request(request.request_id)
                else:
                    with computing_here():  # a command forks nothing
                        self._engine.step()
                for output in self._take():
                    on_text(run.put(output))

    def _take(self) -> list[RequestStreamOutput]:
        taken = self._outputs[:]
        self._outputs.clear()
        return taken

    def _answer(self, run: _Run) -> Answer:
        if run.text.error is not None:
            raise RequestError(run.text.error)
        assert run.finish_reason is not None  # it comes before the usage
        from mlc_llm.cli.answers import Answer

        return Answer(
            model=self.model.name,
            text="".join(run.text.pieces),
            finish_reason=run.finish_reason,
            prompt_tokens=run.usage.prompt_tokens,
            completion_tokens=run.usage.completion_tokens,
            timings=run.timings(self._load_s),
        )


class _Run:
    """The outputs of a request so far."""

    def __init__(self, tokenizer: Tokenizer, started: float) -> None:
        self.text = SequenceText(tokenizer)
        self.usage = Usage(0, 0, 0)
        self.ended = False
        """The usage has come. Nothing comes after it."""
        self.finish_reason: FinishReason | None = None
        self.aborting = False
        self._started = started
        self._first: float | None = None
        self._last = started

    def put(self, output: RequestStreamOutput) -> str:
        """Add one output. Returns its text."""
        _, (sequence,) = output.unpack()
        self._last = time.perf_counter()
        if sequence.request_final_usage_json_str is not None:
            self.usage = Usage.from_json(sequence.request_final_usage_json_str)
            self.ended = True
            return ""
        if sequence.delta_token_ids and self._first is None:
            self._first = self._last
        self.finish_reason = sequence.finish_reason or self.finish_reason
        return self.text.put(sequence)

    def timings(self, load_s: float) -> Timings:
        """The times, after the request has ended."""
        from mlc_llm.cli.answers import Timings, rate

        ttft = None if self._first is None else self._first - self._started
        later = self._last - (self._first or self._started)
        return Timings(
            load_s=load_s,
            ttft_s=ttft,
            total_s=self._last - self._started,
            prefill_tokens_per_s=rate(self.usage.prompt_tokens, ttft),
            decode_tokens_per_s=rate(self.usage.completion_tokens - 1, later),
        )
