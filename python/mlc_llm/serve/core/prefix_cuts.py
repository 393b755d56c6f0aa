"""Where a sequence of a model with states can be cut: a state cannot be split at a token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mlc_llm.serve.core.radix_tree import PagedRadixTree

Cuts = Callable[[int], Sequence[int]]
"""Of a sequence: behind how many of its tokens an earlier state is kept."""


def longest_cut(
    tree: PagedRadixTree,
    tokens: Sequence[int],
    length: int,
    places: Mapping[int, Iterable[int]],
) -> tuple[int, tuple[int, ...]]:
    """The longest beginning of `tokens`, of at most `length`, that can be taken over, and the
    sequences that have it; (0, ()) if there is none.

    places: by a number of tokens, the sequences of the tree that can be cut there.
    """
    for place in sorted(places, reverse=True):
        if not 0 < place <= length:
            continue
        matched, ids = tree.match(tokens[:place])
        found = tuple(sorted({*places[place]}.intersection(ids)))
        if matched == place and found:
            return place, found
    return 0, ()
