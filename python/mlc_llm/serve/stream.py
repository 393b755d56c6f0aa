"""Makes text of the outputs of an engine. Every reader of outputs uses it."""

from __future__ import annotations

from mlc_llm.serve.data import FinishReason, SingleRequestStreamOutput
from mlc_llm.tokenizers import TextStreamer, Tokenizer


class SequenceText:
    """The text of one sequence, in pieces."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._streamer = TextStreamer(tokenizer)
        self.pieces: list[str] = []
        self.logprobs: list[str] = []
        self.error: str | None = None
        self.finish_reason: FinishReason | None = None
        """It is set when the sequence has ended."""

    def put(self, output: SingleRequestStreamOutput) -> str:
        """Add one output. Returns the new text that is certain.

        After the end of the sequence there may be more outputs, because other sequences go on. They
        are empty for this sequence.
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
    """The text without its last bytes (UTF-8)."""
    return text.encode()[:-num_bytes].decode(errors="ignore") if num_bytes else text
