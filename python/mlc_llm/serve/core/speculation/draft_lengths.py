"""How many tokens to draft, learnt from what steps took and how many guesses came true.

Only the clock decides here, and only about speed: whatever is drafted, the tokens are the same.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Sequence

from mlc_llm.serve.config import MAX_DRAFT_LENGTH, MAX_DRAFTED

MARGIN = 1.05
"""Drafts have to be better than a plain step by this."""
FIRST_PAUSE, LAST_PAUSE = 16, 1024
"""Steps from one attempt to the next while drafts do not pay."""
REFRESH = 64
"""Drafted steps until a plain one is measured again."""
EXPLORE, OFFSETS = 16, (1, -1, 2, -2, 3)
"""Every so many drafted steps, one of another size, by so many guesses."""
RISE, FALL = 0.1, 0.5
"""Of the way to a longer or a shorter time that was just measured. So what is remembered is the
time of a step that nothing disturbs, which can be compared with others from other moments."""
HOPE = 0.9
"""What a size that was never measured is expected to take, of what its neighbours do: steps are not
even in their size, so it is worth a try where it would be good."""
_PLAIN_SAMPLES = 2


class Acceptance:
    """The share of guesses that come true, of those that had only true ones before them."""

    def __init__(self, prior: Acceptance | None = None, *, memory: float = 0.98) -> None:
        """prior: what is expected until enough is known, as it stands at each moment."""
        self._prior = prior
        self._memory = memory
        self._accepted = self._tried = 0.0

    @property
    def rate(self) -> float:
        """0 to just below 1, which nothing is sure to be."""
        expected, weight = (0.5, 1.0) if self._prior is None else (self._prior.rate, 2.0)
        return min((self._accepted + weight * expected) / (self._tried + weight), 0.98)

    def learn(self, accepted: int, *, is_rejected: bool) -> None:
        """So many guesses came true, and then one did not or there were no more."""
        self._accepted = self._memory * self._accepted + accepted
        self._tried = self._memory * self._tried + accepted + is_rejected


class StepTimes:
    """Seconds of a step by the tokens in it."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._samples: dict[int, int] = {}
        self._sizes: list[int] = []

    def samples(self, tokens: int) -> int:
        """How often a step of just this size was measured."""
        return self._samples.get(tokens, 0)

    def learn(self, tokens: int, seconds: float) -> None:
        """A step took so long."""
        known = self._seconds.get(tokens)
        self._samples[tokens] = self.samples(tokens) + 1
        if known is None:
            bisect.insort(self._sizes, tokens)
            self._seconds[tokens] = seconds
        else:
            weight = RISE if seconds > known else FALL
            self._seconds[tokens] = known + weight * (min(seconds, 2 * known) - known)

    def estimate(self, tokens: int) -> float:
        """Measured, or between what was measured; 0 while nothing was."""
        known = self._seconds.get(tokens)
        if known is not None:
            return known
        return HOPE * self._between(tokens) if self._sizes else 0.0

    def _between(self, tokens: int) -> float:
        place = bisect.bisect(self._sizes, tokens)
        below, above = self._sizes[max(place - 1, 0)], self._sizes[min(place, len(self._sizes) - 1)]
        if below >= above:
            return self._seconds[below]
        share = (tokens - below) / (above - below)
        return (1 - share) * self._seconds[below] + share * self._seconds[above]


class DraftLengths:
    """Chooses how many tokens to draft for each row of a step, so that tokens come fastest."""

    def __init__(self, fixed: int = 0) -> None:
        """fixed: this many for each row, or none where that does not pay; 0 leaves it open."""
        self._fixed = fixed
        self.times = StepTimes()
        self._since_plain: dict[int, int] = {}
        self._pause = FIRST_PAUSE
        self._quiet = 0
        self._turn = 0
        self._refused: Sequence[tuple[int, float]] | None = None
        """Offers that did not pay: most steps bring the same, and are not worth a second look."""

    def learn(self, rows: int, drafted: int, seconds: float) -> None:
        """A step of so many rows and drafted tokens took so long."""
        self.times.learn(rows + drafted, seconds)
        self._since_plain[rows] = self._since_plain.get(rows, 0) + 1 if drafted else 0

    def failed(self) -> None:
        """The drafter broke down: leave it alone for a while."""
        self._pause = min(2 * self._pause, LAST_PAUSE)
        self._quiet = -self._pause

    def choose(
        self, offers: Sequence[tuple[int, float]], cost: Callable[[int, int], float]
    ) -> list[int]:
        """Tokens to draft for each row, given (most of them, rate of acceptance) of each.

        cost: seconds to draft for so many rows up to so many tokens.
        """
        nothing, rows = [0] * len(offers), len(offers)
        if not any(most for most, _ in offers) or self._wants_plain(rows):
            return nothing
        if self._quiet < 0:
            self._quiet += 1
            return nothing
        self._quiet += 1
        if offers == self._refused and self._quiet < self._pause:
            return nothing
        places = self._places(offers)
        speed, count = self._best(places, len(offers), cost)
        if speed > MARGIN * rows / self.times.estimate(rows):
            self._pause, self._quiet, self._refused = FIRST_PAUSE, 0, None
            return _lengths(places[: self._varied(count, len(places))], rows)
        self._refused = offers
        if self._quiet < self._pause:
            return nothing
        self._quiet, self._pause = 0, min(2 * self._pause, LAST_PAUSE)
        return _lengths(places if self._fixed else places[: 2 * rows], rows)

    def _varied(self, count: int, most: int) -> int:
        """The best number of guesses, or now and then one near it: it may be better than thought,
        as times are not even in the size of a step."""
        self._turn += 1
        turn, is_off = divmod(self._turn, EXPLORE)
        if is_off or self._fixed:
            return count
        return min(max(count + OFFSETS[turn % len(OFFSETS)], 1), most)

    def _wants_plain(self, rows: int) -> bool:
        """Whether it is time to see again what a plain step takes."""
        return (
            self.times.samples(rows) < _PLAIN_SAMPLES
            or self._since_plain.get(rows, REFRESH) >= REFRESH
        )

    def _places(self, offers: Sequence[tuple[int, float]]) -> list[tuple[float, int]]:
        """(expected gain, row) of each token that may be drafted, the likeliest first.

        A token is less likely than those before it, so a beginning of the list holds a beginning
        of each row.
        """
        most = self._fixed or MAX_DRAFT_LENGTH
        places = (
            (rate**place, row)
            for row, (offered, rate) in enumerate(offers)
            for place in range(1, min(offered, most) + 1)
        )
        return heapq.nlargest(MAX_DRAFTED, places, key=lambda one: one[0])

    def _best(
        self, places: Sequence[tuple[float, int]], rows: int, cost: Callable[[int, int], float]
    ) -> tuple[float, int]:
        """(tokens a second, how many of the places) where most are to be expected."""
        lengths = [0] * rows
        best, gain, depth, drafting = (0.0, 0), 0.0, 0, 0
        for count, (likelihood, row) in enumerate(places, 1):
            drafting += not lengths[row]
            lengths[row] += 1
            depth = max(depth, lengths[row])
            gain += likelihood
            if self._fixed and count < len(places):
                continue
            seconds = self.times.estimate(rows + count) + cost(drafting, depth)
            best = max(best, ((rows + gain) / max(seconds, 1e-9), count))
        return best


def _lengths(places: Sequence[tuple[float, int]], rows: int) -> list[int]:
    found = [0] * rows
    for _, row in places:
        found[row] += 1
    return found
