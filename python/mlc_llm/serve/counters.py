"""What an engine counts besides sums: by size of a batch, by place of a draft, of lookups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

MAX_TRACKED_BATCH_SIZE = 64


@dataclass
class TimeByBatchSize:
    """The mean time of a step for each batch size. The first sample of a size is not counted: it is
    a warm-up."""

    seconds: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def record(self, batch_size: int, seconds: float) -> None:
        count = self.counts.get(batch_size)
        if count is not None:
            self.counts[batch_size] = count + 1
            self.seconds[batch_size] += seconds
        elif 0 < batch_size <= MAX_TRACKED_BATCH_SIZE:
            self.counts[batch_size], self.seconds[batch_size] = 0, 0.0

    def asdict(self) -> dict[str, int | float]:
        sizes = sorted(size for size, count in self.counts.items() if count)
        means = {f"mean{{batch_size={b}}}": self.seconds[b] / self.counts[b] for b in sizes}
        return {**means, **{f"count{{batch_size={b}}}": self.counts[b] for b in sizes}}


@dataclass
class SpecDecode:
    """How many tokens were drafted at each place of a draft, and how many were accepted."""

    draft_count: list[int] = field(default_factory=list)
    accept_count: list[int] = field(default_factory=list)
    _reached: list[int] = field(default_factory=list)
    """Drafts that had a token at this place and all tokens before it accepted."""

    def record(self, drafted: int, accepted: int) -> None:
        assert 0 <= accepted <= drafted
        missing = drafted - len(self.draft_count)
        self.draft_count += [0] * missing
        self.accept_count += [0] * missing
        self._reached += [0] * missing
        for step in range(drafted):
            self.draft_count[step] += 1
            self._reached[step] += step <= accepted
            self.accept_count[step] += step < accepted

    def asdict(self) -> dict[str, object]:
        """Step i is the place after i drafted tokens.

        draft_count: drafts that had a token there. accept_count: tokens accepted there.
        accept_prob: `accept_count` divided by `draft_count`. accept_rate: `accept_count` divided by
        the number of drafts that had a token there and all tokens before it accepted. accept_len:
        the mean number of tokens of a draft that were accepted up to this place, this one included.
        The last one is the mean of all drafts.
        """
        steps = range(len(self.draft_count))
        prob = [_ratio(self.accept_count[i], self.draft_count[i]) for i in steps]
        rate = [_ratio(self.accept_count[i], self._reached[i]) for i in steps[1:]]
        drafts = self.draft_count[0] if self.draft_count else 0
        lengths = [_ratio(total, drafts) for total in accumulate(self.accept_count)]
        return {
            "draft_count": list(self.draft_count),
            "accept_count": list(self.accept_count),
            "accept_prob": _by_step("accept_prob", prob, 0),
            "accept_rate": _by_step("accept_rate", rate, 1),
            "accept_len": _by_step("accept_len", lengths, 0),
        }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _by_step(name: str, values: Sequence[float], first: int) -> dict[str, float]:
    return {f"{name}{{step={i}}}": value for i, value in enumerate(values, first)}


@dataclass
class PrefixLookups:
    """What requests found in the prefix cache before their first token was computed."""

    lookups_sum: int = 0
    """Prompts that were looked up before any of their tokens was computed."""
    hits_sum: int = 0
    """Prompts of which the cache had at least one token."""
    cached_tokens_sum: int = 0
    """Tokens that came from the cache."""
    divergences_sum: int = 0
    """Prompts that began like a cached sequence and then had another token."""
    last_divergence: dict[str, int] = field(default_factory=dict)
    """The last such prompt: `position`, `seq_id` (the cached sequence), and the tokens of both at
    this position, `cached_token` and `prompt_token`."""
