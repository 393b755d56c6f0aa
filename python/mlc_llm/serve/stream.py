"""From stream outputs to text: what every consumer of an engine's outputs does with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mlc_llm.errors import RequestError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import RequestStreamOutput, SingleRequestStreamOutput
from mlc_llm.tokenizers import TextStreamer, Tokenizer


class BranchText:
    """The text of one branch, piece by piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._streamer = TextStreamer(tokenizer)
        self.pieces: list[str] = []
        self.logprobs: list[str] = []
        self.error: str | None = None
        self._ended = False

    def put(self, output: SingleRequestStreamOutput) -> str:
        """Take one output in; returns the text that is certain by now.

        After the branch's end there may be more outputs, for other branches; they are empty here.
        """
        if self._ended:
            return ""
        text = output.extra_prefix_string + self._streamer.put(output.delta_token_ids)
        if output.finish_reason is not None:
            self._ended = True
            text = without_end(text + self._streamer.finish(), output.cut_bytes)
        self.pieces.append(text)
        self.logprobs += output.delta_logprob_json_strs or []
        self.error = self.error or output.error
        return text


class RequestTexts:
    """A stream callback that gathers the texts of requests "0", "1", ..., one a config.

    Outputs of any other request are handed on to `others`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        configs: list[GenerationConfig],
        others: Callable[[list[RequestStreamOutput]], None] | None,
    ) -> None:
        self._configs = configs
        self._others = others
        self._requests = {
            str(i): [BranchText(tokenizer) for _ in range(config.n)]
            for i, config in enumerate(configs)
        }

    def put(self, outputs: Iterable[RequestStreamOutput]) -> None:
        """Take the outputs of one step."""
        foreign = []
        for output in outputs:
            branches = self._requests.get(output.request_id)
            if branches is None:
                foreign.append(output)
            elif output.request_final_usage_json_str is None:
                for branch, single in zip(branches, output.unpack()[1], strict=True):
                    branch.put(single)
        if foreign and self._others is not None:
            self._others(foreign)

    def results(self) -> tuple[list[list[str]], list[list[list[str]] | None]]:
        """Texts and log-probabilities, as `SyncMLCEngine.generate` returns them."""
        texts, logprobs = [], []
        for config, (name, branches) in zip(self._configs, self._requests.items(), strict=True):
            for branch in branches:
                if branch.error is not None:
                    raise RequestError(f"request {name} failed: {branch.error}")
            texts.append(["".join(branch.pieces) for branch in branches])
            logprobs.append([b.logprobs for b in branches] if config.logprobs else None)
        return texts, logprobs


def without_end(text: str, num_bytes: int) -> str:
    """The text less its last bytes (UTF-8)."""
    return text.encode()[:-num_bytes].decode(errors="ignore") if num_bytes else text
