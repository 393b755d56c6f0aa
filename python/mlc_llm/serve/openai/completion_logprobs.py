"""Log-probabilities in the form of the older API: parallel lists, a place for each token."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_llm.protocol.openai_responses import CompletionLogProbs, PromptLogProb, TopLogProbs


class TokenLists:
    """Writes the lists of one choice, piece by piece."""

    def __init__(self) -> None:
        self._offset = 0
        """Where the next character of the tokens begins in the text of the choice."""

    def of_prompt(self, tokens: Sequence[str], shown: str) -> CompletionLogProbs:
        """The lists of the prompt's tokens, which come first. The first token has no probability.

        tokens: JSON texts, as the engine writes them. shown: the prompt as the choice shows it. Its
        tokens may have more characters at the start: a control token, or a space that the model
        puts there. These tokens have the offset 0.
        """
        read = [PromptLogProb.model_validate_json(one) for one in tokens]
        self._offset = len(shown) - sum(_starts(bytes(one.bytes or ())) for one in read)
        found = CompletionLogProbs()
        for one in read:
            self._add(found, one)
        return found

    def of_tokens(self, tokens: Sequence[str]) -> CompletionLogProbs:
        """The lists of the next generated tokens. tokens: as in `of_prompt`."""
        found = CompletionLogProbs()
        for one in map(PromptLogProb.model_validate_json, tokens):
            self._add(found, one)
        return found

    def _add(self, found: CompletionLogProbs, one: PromptLogProb) -> None:
        """The likely tokens include the one that is there, with the same number: clients compare
        the two."""
        raw, name = bytes(one.bytes or ()), _name(one)
        begins_inside = bool(raw) and 0x80 <= raw[0] < 0xC0  # of a character
        found.text_offset.append(max(self._offset - begins_inside, 0))
        self._offset += _starts(raw)
        found.tokens.append(name)
        found.token_logprobs.append(one.logprob)
        likely = {_name(other): other.logprob for other in one.top_logprobs or ()}
        top = None if one.logprob is None else {**likely, name: one.logprob}
        found.top_logprobs.append(top)


def _name(token: PromptLogProb | TopLogProbs) -> str:
    """Its text; `bytes:` and each byte, as OpenAI writes it, where it is not whole characters. So
    two tokens of a place have two names."""
    try:
        return bytes(token.bytes or ()).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{one:02x}" for one in token.bytes or ())


def _starts(raw: bytes) -> int:
    """Characters that begin in bytes of UTF-8."""
    return sum(not 0x80 <= one < 0xC0 for one in raw)


def joined(first: CompletionLogProbs, then: CompletionLogProbs) -> CompletionLogProbs:
    """Both, one behind the other."""
    return CompletionLogProbs(
        text_offset=first.text_offset + then.text_offset,
        token_logprobs=first.token_logprobs + then.token_logprobs,
        tokens=first.tokens + then.tokens,
        top_logprobs=first.top_logprobs + then.top_logprobs,
    )
