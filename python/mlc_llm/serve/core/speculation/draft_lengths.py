"""How many tokens to draft, learnt from the times of steps and from how many were accepted.

Only the clock decides here, and only about speed. The tokens are the same whatever is drafted.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from operator import itemgetter

from mlc_llm.serve.config_fields import MAX_DRAFT_LENGTH, MAX_DRAFTED

MARGIN = 1.02
"""Drafts have to be better than a plain step by this factor."""
FIRST_PAUSE, LAST_PAUSE = 16, 128
"""Steps from one attempt to the next while drafts do not pay."""
LOOKS_OF_A_STEP, MOST_PATIENCE = 4, 8
"""For each so many looks in a row that found nothing that pays, a step more is left out between two
looks, up to so many."""
REFRESH = 64
"""Drafted steps until a plain one is measured again."""
EXPLORE, OFFSETS = 16, (1, -1, 2, -2, 3)
"""One of EXPLORE drafted steps has another size, by one of OFFSETS draft tokens."""
RISE, FALL = 0.1, 0.5
"""How far a remembered time moves towards a longer or a shorter one that was just measured. So it
stays near the time of a step that nothing disturbs, and such times can be compared."""
KIND_TRIES = 5.0
"""What a kind of drafts is known for counts as so many tries of a new sequence."""
HOPED = 0.5
"""Standard errors that a rate is hoped to be above what was seen of it."""
MOST_RATE = 0.98
"""No token is sure to be accepted."""
MEMORY = 0.98
"""What earlier tries count for at each new one."""
LEAST = 0.01
"""Tokens that are less likely are not drafted."""
HOPE = 0.9
"""A size that was never measured is expected to take this share of the time between its neighbours.
Times are not even in the size, so such a size is tried where it may be the best one."""
_PLAIN_SAMPLES = 2


class AcceptanceRate:
    """How often a draft token is accepted if all draft tokens before it are."""

    def __init__(self, prior: AcceptanceRate | None = None) -> None:
        """prior: the rate to expect while little is known; it may change meanwhile."""
        self._prior = prior
        self._accepted = self._tried = 0.0

    @property
    def rate(self) -> float:
        """From 0 to MOST_RATE."""
        expected, weight = (0.5, 1.0) if self._prior is None else (self._prior.rate, KIND_TRIES)
        return min((self._accepted + weight * expected) / (self._tried + weight), MOST_RATE)

    @property
    def hoped(self) -> float:
        """A rate that would be no surprise. Who drafts in vain learns so in a few steps; who does
        not draft learns nothing, and would stay with what some unlucky drafts said."""
        rate, tried = self.rate, self._tried + KIND_TRIES
        return min(rate + HOPED * math.sqrt(rate * (1 - rate) / tried), MOST_RATE)

    def learn(self, accepted: int, *, is_rejected: bool) -> None:
        """So many draft tokens were accepted. is_rejected: one more was there and was not."""
        self._accepted = MEMORY * self._accepted + accepted
        self._tried = MEMORY * self._tried + accepted + is_rejected


class StepTimes:
    """Seconds of a step by the tokens in it."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._samples: dict[int, int] = {}
        self._sizes: list[int] = []

    def samples(self, tokens: int) -> int:
        """How often a step with exactly so many tokens was measured."""
        return self._samples.get(tokens, 0)

    def learn(self, tokens: int, seconds: float) -> None:
        """A step with so many tokens took `seconds`."""
        known = self._seconds.get(tokens)
        self._samples[tokens] = self.samples(tokens) + 1
        if known is None:
            bisect.insort(self._sizes, tokens)
            self._seconds[tokens] = seconds
        else:
            weight = RISE if seconds > known else FALL
            self._seconds[tokens] = known + weight * (min(seconds, 2 * known) - known)

    def estimate(self, tokens: int) -> float:
        """The measured time, or one between measured times; 0 while there is none."""
        known = self._seconds.get(tokens)
        if known is not None:
            return known
        return HOPE * self._between(tokens) if self._sizes else 0.0

    def _between(self, tokens: int) -> float:
        i = bisect.bisect(self._sizes, tokens)
        below, above = self._sizes[max(i - 1, 0)], self._sizes[min(i, len(self._sizes) - 1)]
        if below >= above:
            return self._seconds[below]
        share = (tokens - below) / (above - below)
        return (1 - share) * self._seconds[below] + share * self._seconds[above]


class DraftLengths:
    """Chooses how many tokens to draft for each row of a step, so that tokens come fastest."""

    def __init__(self, fixed: int = 0, *, max_rows: int | None = None) -> None:
        """fixed: tokens for each row, none where they do not pay; 0 learns the number. max_rows:
        of a step, draft tokens included; None: as many as wanted."""
        self._fixed, self._max_rows = fixed, max_rows
        self.times = StepTimes()
        self._since_plain: dict[int, int] = {}
        self._pause = FIRST_PAUSE
        self._quiet = 0
        """Steps since the last one with drafts."""
        self._in_vain = 0
        """Looks since drafts were better than plain steps."""
        self._turn = 0
        self._refused: Sequence[tuple[int, float]] | None = None
        """Offers that did not pay. Most steps bring the same again, which are not rated twice."""

    @property
    def patience(self) -> int:
        """Steps that may pass until `choose` is asked again: the more, the longer drafts did not
        pay. To look at a text costs a part of a step, too."""
        return min(self._in_vain // LOOKS_OF_A_STEP, MOST_PATIENCE)

    def learn(self, rows: int, drafted: int, seconds: float) -> None:
        """A step with so many rows and draft tokens took `seconds`."""
        self.times.learn(rows + drafted, seconds)
        self._since_plain[rows] = self._since_plain.get(rows, 0) + 1 if drafted else 0
        self._quiet = 0 if drafted else self._quiet + 1

    def found_nothing(self) -> None:
        """Nobody offers a draft."""
        self._in_vain += 1

    def failed(self) -> None:
        """The drafter has failed: no drafts for a while."""
        self._pause = min(2 * self._pause, LAST_PAUSE)
        self._quiet = -self._pause

    def choose(
        self, offers: Sequence[tuple[int, float]], cost: Callable[[int, int], float]
    ) -> list[int]:
        """Tokens to draft for each row.

        offers: (most tokens, rate of acceptance) of each row. cost: seconds to draft for so many
        rows, up to so many tokens each.
        """
        nothing, rows = [0] * len(offers), len(offers)
        if self._wants_plain(rows):
            return nothing
        self.found_nothing()
        if not any(most for most, _ in offers):
            return nothing
        is_due = self._quiet >= self._pause
        if self._quiet < 0 or (offers == self._refused and not is_due):
            return nothing
        candidates = self._candidates(offers)
        speed, count = self._best(candidates, len(offers), cost)
        if speed > MARGIN * rows / self.times.estimate(rows):
            self._pause, self._in_vain, self._refused = FIRST_PAUSE, 0, None
            return _lengths(candidates[: self._varied(count, len(candidates))], rows)
        self._refused = offers
        if not is_due:
            return nothing
        self._pause = min(2 * self._pause, LAST_PAUSE)
        return _lengths(candidates if self._fixed else candidates[: max(count, 2 * rows)], rows)

    def _varied(self, count: int, most: int) -> int:
        """The best number of draft tokens, or sometimes a number near it.

        That one may be better than expected: times are not even in the size of a step.
        """
        self._turn += 1
        turn, is_off = divmod(self._turn, EXPLORE)
        if is_off or self._fixed:
            return count
        return min(max(count + OFFSETS[turn % len(OFFSETS)], 1), most)

    def _wants_plain(self, rows: int) -> bool:
        """It is time to measure a plain step again."""
        return (
            self.times.samples(rows) < _PLAIN_SAMPLES
            or self._since_plain.get(rows, REFRESH) >= REFRESH
        )

    def _candidates(self, offers: Sequence[tuple[int, float]]) -> list[tuple[float, int]]:
        """(expected gain, row) of each token that may be drafted, the likeliest first.

        A token is less likely than the tokens before it. So the first tokens of the list are also
        the first tokens of each row.
        """
        found, most = [], self._fixed or MAX_DRAFT_LENGTH
        for row, (offered, rate) in enumerate(offers):
            likelihood = 1.0
            for _ in range(min(offered, most)):
                likelihood *= rate
                if likelihood < LEAST and not self._fixed:
                    break
                found.append((likelihood, row))
        if len(offers) > 1:
            found.sort(key=itemgetter(0), reverse=True)
        if self._max_rows is not None:
            del found[max(self._max_rows - len(offers), 0) :]
        return found[:MAX_DRAFTED]

    def _best(
        self, candidates: Sequence[tuple[float, int]], rows: int, cost: Callable[[int, int], float]
    ) -> tuple[float, int]:
        """The greatest expected speed, in tokens a second, and how many candidates give it."""
        lengths, most = [0] * rows, rows + sum([likelihood for likelihood, _ in candidates])
        best, gain, depth, drafting = (0.0, 0), 0.0, 0, 0
        for count, (likelihood, row) in enumerate(candidates, 1):
            drafting += not lengths[row]
            lengths[row] += 1
            depth = max(depth, lengths[row])
            gain += likelihood
            if self._fixed and count < len(candidates):
                continue
            seconds = self.times.estimate(rows + count) + cost(drafting, depth)
            best = max(best, ((rows + gain) / max(seconds, 1e-9), count))
            if most < best[0] * HOPE * seconds:
                break  # all the others together, in hardly more time, would be no better
        return best


def _lengths(candidates: Sequence[tuple[float, int]], rows: int) -> list[int]:
    found = [0] * rows
    for _, row in candidates:
        found[row] += 1
    return found
