"""An EAGLE-3 head that can learn: `cnets.py` of its authors, of texts that stand alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from bf16 import NUMBERS, normed, product
from float_model import FloatModel
from torch.nn import functional

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
CALM = 0.4
"""What the logits begin with, as a share of the model's: it is sure of the token that is known."""
NORMS = ("embedding_norm", "hidden_norm", "mlp_norm", "norm")


class Head(torch.nn.Module):  # type: ignore[misc]
    """It begins with the model's last vector, its head and a part of its last layer.

    What its layer adds to is behind a norm (`norm_before_residual`), so that it is of one size
    whatever the model's vectors are, and in each pass.
    """

    def __init__(self, model: FloatModel, tokens: torch.Tensor) -> None:
        """tokens: those that it can draft, in rising order."""
        super().__init__()
        self.model, self.tokens, wide = model, tokens, model.hidden
        inner = model.weights["blk.0.ffn_up.weight"].shape[0]
        kv, queries = model.kv_heads * model.head_dim, model.heads * model.head_dim
        self.weights = torch.nn.ParameterDict(
            {
                name: torch.randn(rows, columns) / columns**0.5
                for name, rows, columns in (
                    ("fc", wide, len(model.taps) * wide),
                    ("q", queries, 2 * wide),
                    ("k", kv, 2 * wide),
                    ("v", kv, 2 * wide),
                    ("o", wide, queries),
                    ("gate", inner, wide),
                    ("up", inner, wide),
                    ("down", wide, inner),
                )
            }
        )
        self.head = torch.nn.Parameter(model.table[tokens].clone())
        self.norms = torch.nn.ParameterDict({name: torch.ones(wide) for name in NORMS})
        self._begin()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _begin(self) -> None:
        model, last, own = self.model, f"blk.{self.model.layers - 1}", self.weights
        own["fc"].zero_()
        own["fc"][:, -model.hidden :] = torch.eye(model.hidden)
        own["o"].zero_()
        own["down"].zero_()
        own["gate"].copy_(model.weights[f"{last}.ffn_gate.weight"])
        own["up"].copy_(model.weights[f"{last}.ffn_up.weight"])
        self.norms["mlp_norm"].copy_(model.weights[f"{last}.ffn_norm.weight"])
        size = model.norm.square().mean().sqrt()
        self.norms["hidden_norm"].copy_(model.norm / size)
        self.norms["norm"].fill_(CALM * size)

    @property
    def matrices(self) -> list[torch.Tensor]:
        """Of the layer."""
        return [*self.weights.values()]

    def last_normed(self, x: torch.Tensor) -> torch.Tensor:
        """What is multiplied with `head`."""
        return normed(x, self.norms["norm"], self.model.eps)

    def passes(
        self, tokens: torch.Tensor, tapped: torch.Tensor, count: int
    ) -> Iterator[torch.Tensor]:
        """What the head expects of tokens 1 and up: first behind the model's vectors of the tokens
        before, then behind what it expected itself, as when it drafts. Pass p means something from
        column p on."""
        eps = self.model.eps
        embedded = normed(self.model.table[tokens[:, 1:]], self.norms["embedding_norm"], eps)
        given, known = product(tapped[:, :-1], self.weights["fc"]).float(), []
        for _ in range(count):
            base = normed(given, self.norms["hidden_norm"], eps)
            q, k, v = self._heads(torch.cat([embedded, base], dim=-1).to(NUMBERS))
            known.append((k, v))
            heads = self._attended(q, known).transpose(1, 2).flatten(2)
            x = self._fed(base + product(heads, self.weights["o"]))
            yield x
            given = _later(x, 1, dim=1)

    def _heads(self, read: torch.Tensor) -> Heads:
        model = self.model
        q, k, v = (
            product(read, self.weights[one])
            .reshape(*read.shape[:2], -1, model.head_dim)
            .transpose(1, 2)
            for one in "qkv"
        )
        more = model.heads // model.kv_heads
        k, v = self._turned(k).repeat_interleave(more, 1), v.repeat_interleave(more, 1)
        return self._turned(q), k, v

    def _attended(
        self, q: torch.Tensor, known: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Of the last pass. A token sees those of the passes before it as a draft does: the last
        token of each later pass, and all before them of the first one."""
        (keys, values), *later = known
        if not later:
            first: torch.Tensor = functional.scaled_dot_product_attention(
                q, keys, values, is_causal=True
            )
            return first
        seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(-len(later))
        hidden = torch.zeros(seen.shape).masked_fill_(~seen, -1e30)
        scale = self.model.head_dim**-0.5
        scores = [(q @ keys.transpose(-1, -2)).float() * scale + hidden]
        moved = [
            [_later(one, len(later) - i, dim=2) for one in pair] for i, pair in enumerate(later, 1)
        ]
        scores += [(q * k).sum(-1, keepdim=True).float() * scale for k, _ in moved]
        shares = torch.cat(scores, dim=-1).softmax(-1).to(NUMBERS)
        found: torch.Tensor = shares[..., : q.shape[2]] @ values
        for i, (_, v) in enumerate(moved, q.shape[2]):
            found = found + shares[..., i : i + 1] * v
        return found

    def _fed(self, x: torch.Tensor) -> torch.Tensor:
        own = self.weights
        y = normed(x, self.norms["mlp_norm"], self.model.eps).to(NUMBERS)
        inner = functional.silu(product(y, own["gate"])) * product(y, own["up"])
        return x + product(inner, own["down"])

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        half = self.model.head_dim // 2
        turn = self.model.theta ** (-torch.arange(half) / half)
        angles = torch.arange(x.shape[2])[:, None] * turn
        cos, sin = angles.cos().to(NUMBERS), angles.sin().to(NUMBERS)
        low, high = x[..., :half], x[..., half:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def _later(x: torch.Tensor, places: int, *, dim: int) -> torch.Tensor:
    """x moved towards the end, with zeros before it."""
    kept = x.narrow(dim, 0, x.shape[dim] - places)
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, places)), kept], dim=dim)
