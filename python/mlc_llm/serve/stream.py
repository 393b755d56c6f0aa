"""From stream outputs to text: what every consumer of an engine's outputs does with them."""

from __future__ import annotations

from mlc_llm.serve.data import FinishReason, SingleRequestStreamOutput
from mlc_llm.tokenizers import TextStreamer, Tokenizer


class BranchText:
    """The text of one branch, piece by piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._streamer = TextStreamer(tokenizer)
        self.pieces: list[str] = []
        self.logprobs: list[str] = []
        self.error: str | None = None
        self.finish_reason: FinishReason | None = None
        """Set when the branch has ended."""

    def put(self, output: SingleRequestStreamOutput) -> str:
        """Take one output in; returns the text that is certain by now.

        After the branch's end there may be more outputs, for other branches; they are empty here.
        """
        if self.finish_reason is not None:
            return ""
        text = output.extra_prefix_string + self._streamer.put(output.delta_token_ids)
        if output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            text = without_end(text + self._streamer.finish(), output.cut_bytes)
        self.pieces.append(text)
        self.logprobs += output.delta_logprob_json_strs or []
        self.error = self.error or output.error
        return text


def without_end(text: str, num_bytes: int) -> str:
    """The text less its last bytes (UTF-8)."""
    return text.encode()[:-num_bytes].decode(errors="ignore") if num_bytes else text
