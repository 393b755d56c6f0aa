"""Which ended sequences are kept, and how a new one begins with the tokens of another.

The cache knows ids and tokens only. Its owner does the same in the runner: it carries out a
`PrefixMatch`, and frees a slot when `on_remove` is called. Here a sequence has only the tokens that
its owner vouches for. So no sequence takes over tokens of a faulty one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from mlc_llm.record import record
from mlc_llm.serve.core.cache_observer import CacheObserver
from mlc_llm.serve.core.images import ImageSpan, before_image
from mlc_llm.serve.core.prefix_cuts import Cuts, longest_cut
from mlc_llm.serve.core.radix_tree import PagedRadixTree

_log = logging.getLogger(__name__)


@record()
class Divergence:
    """Where a prompt first differs from the cached sequence that begins like it."""

    position: int
    """Tokens in common."""
    seq_id: int
    cached_token: int
    prompt_token: int

    def __str__(self) -> str:
        return (
            f"prefix cache: sequence {self.seq_id} has token {self.cached_token} at "
            f"{self.position}, the prompt {self.prompt_token}"
        )


@record()
class PrefixMatch:
    """How a sequence begins. `PrefixCache.lookup` fills it, `Slots` carries it out."""

    kind: Literal["new", "fork", "reuse"] = "new"
    """`reuse`: the new sequence takes the source's slot, without the last `rollback` tokens."""
    length: int = 0
    """Tokens that are computed already; fewer than the prompt has."""
    source: int | None = None
    rollback: int = 0
    divergence: Divergence | None = None
    """None where no token is in common, or all tokens up to the end of one of the two."""


class PrefixCache:
    """Every sequence of the runner is in it: active (it runs), recycling or pinned.

    Active and pinned ones can only be forked. A recycling one may also be reused. It is removed
    when its slot or its pages are needed; the one that finished first goes first.
    """

    def __init__(
        self,
        on_remove: Callable[[int], None],
        *,
        max_num_sequence: int,
        max_recycling: int | None = None,
        exact_only: bool = False,
        enabled: bool = True,
        cuts: Cuts | None = None,
    ) -> None:
        """on_remove: gives the sequence's slot and its pages back.
        max_num_sequence: most sequences, active and kept ones together.
        max_recycling: 0 keeps none; None and -1 set no other limit.
        exact_only: a sequence is taken over whole or not at all (models with windows or states),
        cuts: or up to one of these numbers of tokens.
        enabled: False keeps nothing and finds nothing.
        """
        self._on_remove = on_remove
        self._max_num_sequence = max_num_sequence
        limit = -1 if max_recycling is None else max_recycling
        self._max_recycling = 0 if not enabled else max_num_sequence if limit < 0 else limit
        self._exact_only, self._cuts = exact_only, cuts
        self.is_enabled = enabled
        self.observer: CacheObserver | None = None
        """Is told of all changes from now on."""
        self.reset()

    def reset(self) -> None:
        """Forget everything, pinned sequences too. `on_remove` is not called."""
        self._trees: dict[str, PagedRadixTree] = {}
        """A tree for each salt: sequences of one tree take over from each other."""
        self._salts: dict[int, str] = {}
        self._active: set[int] = set()
        self._recycling: dict[int, int] = {}  # id -> owner, the one that finished first in front
        self._pinned: dict[int, int] = {}
        self._has_warned = False
        if self.observer is not None:
            self.observer.cleared()

    @property
    def num_sequences(self) -> int:
        """Sequences that the runner holds; `max_num_sequence` at most."""
        return len(self._active) + len(self._recycling) + len(self._pinned)

    @property
    def num_kept(self) -> int:
        """Those that have ended."""
        return len(self._recycling) + len(self._pinned)

    @property
    def recycling(self) -> list[int]:
        """Ids, the next one to be evicted first."""
        return list(self._recycling)

    @property
    def pinned(self) -> list[int]:
        """Ids, the oldest first."""
        return list(self._pinned)

    def length(self, seq_id: int) -> int:
        """Tokens of a sequence that others can take over."""
        return self._tree_of(seq_id).get_length(seq_id)

    def tokens(self, seq_id: int) -> list[int]:
        """Those tokens."""
        return self._tree_of(seq_id).get(seq_id)

    def lookup(
        self,
        tokens: Sequence[int],
        *,
        may_fork: bool = True,
        salt: str = "",
        images: Sequence[ImageSpan] = (),
    ) -> PrefixMatch:
        """The best way to begin a sequence that will hold `tokens`. Changes nothing. Sequences of
        another salt are not looked at.

        The last token is not looked for: at least one is left to compute. The shortest recycling
        sequence that matches is reused if more than 90 % of it match (if any of it matches, with
        `may_fork` False). Else a sequence that matches is forked. images: of these tokens; none of
        them is taken over in part.
        """
        tree = self._trees.get(salt)
        if not self.is_enabled or tree is None:
            return PrefixMatch()
        is_exact = self._exact_only and self._cuts is None
        length, ids = tree.match(tokens[:-1])
        if (uncut := before_image(images, length)) < length:
            length, ids = uncut, ids if uncut else ()
        divergence = _divergence(tree, tokens, length, ids)
        if self._cuts is not None:
            length, ids = longest_cut(tree, tokens, length, self._places(tree, self._cuts))
        shortest = self._shortest_recycling(ids)
        if shortest is not None:
            whole = tree.get_length(shortest)
            is_close = whole == length if is_exact else 10 * length > 9 * whole
            if is_close or not (may_fork or is_exact):
                return PrefixMatch("reuse", length, shortest, whole - length, divergence)
        if not ids or not may_fork or is_exact:
            return PrefixMatch(divergence=divergence)
        return PrefixMatch("fork", length, self._fork_source(ids), divergence=divergence)

    def begin(self, seq_id: int, prefix: PrefixMatch, *, salt: str = "") -> None:
        """A sequence of this id runs from now on, and begins as `prefix` says. salt: as for
        `lookup`.

        A fork of tokens that nobody has vouched for yet begins without tokens here.
        """
        if prefix.kind == "reuse":
            assert seq_id == prefix.source
            del self._recycling[seq_id]
            self._roll_back(seq_id, prefix.rollback)
            self._active.add(seq_id)
            return
        tree = self._trees.setdefault(salt, PagedRadixTree())
        source = prefix.source
        if source is not None and prefix.length > self.length(source):
            source = None
        if source is not None:
            tree.fork(seq_id, source, prefix.length)
        else:
            tree.add(seq_id)
        if self.observer is not None:
            self.observer.begun(seq_id, source, prefix.length, salt)
        self._salts[seq_id] = salt
        self._active.add(seq_id)

    def extend(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Append tokens that the sequence has computed and that its owner vouches for."""
        assert seq_id in self._active
        if self.is_enabled:
            self._tree_of(seq_id).extend(seq_id, tokens)
            if self.observer is not None:
                self.observer.extended(seq_id, tokens)

    def finish(self, seq_id: int, owner: int = -1, *, pinned_length: int = 0) -> int:
        """An active sequence has ended: keep it as long as its slot is not needed.

        owner: for `forget`. pinned_length: if not 0, pin its first `pinned_length` tokens. That is
        not done if a pinned sequence begins with them, or if all slots would be pinned then.

        Returns how many tokens the cache's owner has to roll back: those behind the pinned ones.
        """
        assert seq_id in self._active
        if pinned_length and self._should_pin(seq_id, pinned_length):
            self._active.remove(seq_id)
            self._pinned[seq_id] = owner
            surplus = self.length(seq_id) - pinned_length
            self._roll_back(seq_id, surplus)
            return surplus
        if self._max_recycling == 0:
            self.remove(seq_id)
        else:
            if len(self._recycling) == self._max_recycling:
                self.evict()
            self._active.remove(seq_id)
            self._recycling[seq_id] = owner
        return 0

    def remove(self, seq_id: int) -> None:
        """Forget a sequence at once, whatever its state (abort, preemption, failure)."""
        self._active.discard(seq_id)
        self._recycling.pop(seq_id, None)
        self._pinned.pop(seq_id, None)
        tree, salt = self._tree_of(seq_id), self._salts.pop(seq_id)
        tree.remove(seq_id)
        if not tree.num_sequences:
            del self._trees[salt]
        if self.observer is not None:
            self.observer.removed(seq_id)
        self._on_remove(seq_id)

    def forget(self, owner: int) -> None:
        """Remove the kept sequences of an owner, which has failed."""
        kept = [*self._recycling.items(), *self._pinned.items()]
        for seq_id in [seq_id for seq_id, name in kept if name == owner]:
            self.remove(seq_id)

    def evict(self, keep: int | None = None, *, even_pinned: bool = False) -> bool:
        """Remove the recycling sequence that finished first; False when there is none.

        keep: an id that stays. even_pinned: if there is none, remove the oldest pinned one.
        """
        victim = next((seq_id for seq_id in self._recycling if seq_id != keep), None)
        if victim is None and even_pinned:
            victim = next((seq_id for seq_id in self._pinned if seq_id != keep), None)
            if victim is not None:
                _log.warning("a pinned prompt leaves the prefix cache: its pages are needed")
        if victim is None:
            return False
        self.remove(victim)
        return True

    def check_integrity(self) -> None:
        """AssertionError unless each sequence has one state and the limits are kept."""
        ids = [*self._active, *self._recycling, *self._pinned]
        assert len(set(ids)) == len(ids) <= self._max_num_sequence, "states"
        assert set(self._salts) == set(ids), "a sequence has no tree"
        assert all(self._tree_of(one).has(one) for one in ids), "a sequence is not in its tree"
        assert sum(one.num_sequences for one in self._trees.values()) == len(ids), "trees have more"
        assert len(self._recycling) <= self._max_recycling, "too many are kept"
        assert self.is_enabled or len(ids) == len(self._active), "the cache is off"
        for tree in self._trees.values():
            tree.check_integrity()

    def _tree_of(self, seq_id: int) -> PagedRadixTree:
        return self._trees[self._salts[seq_id]]

    def _places(self, tree: PagedRadixTree, cuts: Cuts) -> dict[int, list[int]]:
        """The numbers of tokens up to which sequences of a tree can be taken over, and by which."""
        found: dict[int, list[int]] = {}
        for seq_id in self._salts:
            if self._tree_of(seq_id) is not tree:
                continue
            end = tree.get_length(seq_id)
            whole = () if seq_id in self._active else (end,)  # it may have gone on since
            for place in {*cuts(seq_id), *whole}:
                if place <= end:
                    found.setdefault(place, []).append(seq_id)
        return found

    def _roll_back(self, seq_id: int, num_tokens: int) -> None:
        self._tree_of(seq_id).rollback(seq_id, num_tokens)
        if self.observer is not None:
            self.observer.cut(seq_id, self.length(seq_id))

    def _shortest_recycling(self, ids: Sequence[int]) -> int | None:
        idle = (seq_id for seq_id in ids if seq_id in self._recycling)
        return min(idle, key=self.length, default=None)

    def _fork_source(self, ids: Sequence[int]) -> int:
        """A sequence that is not recycling, else the one that would be evicted last."""
        stays = next((seq_id for seq_id in ids if seq_id not in self._recycling), None)
        if stays is not None:
            return stays
        return next(seq_id for seq_id in reversed(self._recycling) if seq_id in ids)

    def _should_pin(self, seq_id: int, length: int) -> bool:
        if not self.is_enabled:
            return False
        _, ids = self._tree_of(seq_id).match(self.tokens(seq_id)[:length])
        if any(one in self._pinned for one in ids):
            return False
        if len(self._pinned) + 1 < self._max_num_sequence:
            return True
        self._warn_no_pin()
        return False

    def _warn_no_pin(self) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "prompts are not pinned any more: %d are, and one of max_num_sequence = %d has to "
            "stay free",
            len(self._pinned),
            self._max_num_sequence,
        )


def _divergence(
    tree: PagedRadixTree, tokens: Sequence[int], length: int, ids: Sequence[int]
) -> Divergence | None:
    if length >= len(tokens) - 1:
        return None
    other = next((seq_id for seq_id in ids if tree.get_length(seq_id) > length), None)
    if other is None:
        return None
    return Divergence(length, other, tree.get_token(other, length), tokens[length])
