"""An EAGLE-3 head that can learn: `cnets.py` of its authors, of texts that stand alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from float_model import FloatModel
from torch.nn import functional

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Head(torch.nn.Module):  # type: ignore[misc]
    """It begins with the model's last vector, its head and a part of its last layer."""

    def __init__(self, model: FloatModel, tokens: torch.Tensor) -> None:
        """tokens: those that it can draft, in rising order."""
        super().__init__()
        self.model, self.tokens, wide = model, tokens, model.hidden
        inner = model.weights["blk.0.ffn_up.weight"].shape[0]
        kv, linear = model.kv_heads * model.head_dim, torch.nn.Linear
        self.fc = linear(len(model.taps) * wide, wide, bias=False)
        self.q = linear(2 * wide, model.heads * model.head_dim, bias=False)
        self.k, self.v = linear(2 * wide, kv, bias=False), linear(2 * wide, kv, bias=False)
        self.o = linear(model.heads * model.head_dim, wide, bias=False)
        self.gate, self.up = linear(wide, inner, bias=False), linear(wide, inner, bias=False)
        self.down = linear(inner, wide, bias=False)
        self.head = linear(wide, len(tokens), bias=False)
        names = ("embedding_norm", "hidden_norm", "mlp_norm", "norm")
        self.norms = torch.nn.ModuleDict(
            {name: torch.nn.RMSNorm(wide, eps=model.eps) for name in names}
        )
        self._begin()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _begin(self) -> None:
        weights, last = self.model.weights, f"blk.{self.model.layers - 1}"
        self.fc.weight.zero_()
        self.fc.weight[:, -self.model.hidden :] = torch.eye(self.model.hidden)
        self.o.weight.zero_()
        self.down.weight.zero_()
        self.gate.weight.copy_(weights[f"{last}.ffn_gate.weight"])
        self.up.weight.copy_(weights[f"{last}.ffn_up.weight"])
        self.norms["mlp_norm"].weight.copy_(weights[f"{last}.ffn_norm.weight"])
        self.norms["norm"].weight.copy_(self.model.norm)
        self.head.weight.copy_(self.model.table[self.tokens])

    @property
    def matrices(self) -> list[torch.Tensor]:
        """Of the layer."""
        found = (self.fc, self.q, self.k, self.v, self.o, self.gate, self.up, self.down)
        return [one.weight for one in found]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Of the tokens that it can draft."""
        found: torch.Tensor = self.head(self.norms["norm"](x))
        return found

    def passes(
        self, tokens: torch.Tensor, tapped: torch.Tensor, count: int
    ) -> Iterator[torch.Tensor]:
        """What the head expects of tokens 1 and up: first behind the model's vectors of the tokens
        before, then behind what it expected itself, as when it drafts. Pass p means something from
        column p on."""
        embedded = self.norms["embedding_norm"](self.model.table[tokens[:, 1:]])
        given, known = self.fc(tapped[:, :-1]), []
        for _ in range(count):
            q, k, v = self._heads(embedded, given)
            known.append((k, v))
            x = self._behind(given, self._attended(q, known))
            yield x
            given = _later(x, 1, dim=1)

    def _heads(self, embedded: torch.Tensor, given: torch.Tensor) -> Heads:
        read, model = torch.cat([embedded, self.norms["hidden_norm"](given)], dim=-1), self.model
        q, k, v = (
            one(read).reshape(*read.shape[:2], -1, model.head_dim).transpose(1, 2)
            for one in (self.q, self.k, self.v)
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
        seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(-len(later))
        scale = self.model.head_dim**-0.5
        scores = [(q @ keys.transpose(-1, -2) * scale).masked_fill(~seen, -1e30)]
        moved = [
            [_later(one, len(later) - i, dim=2) for one in pair] for i, pair in enumerate(later, 1)
        ]
        scores += [(q * k).sum(-1, keepdim=True) * scale for k, _ in moved]
        shares = torch.cat(scores, dim=-1).softmax(-1)
        found: torch.Tensor = shares[..., : q.shape[2]] @ values
        for i, (_, v) in enumerate(moved, q.shape[2]):
            found = found + shares[..., i : i + 1] * v
        return found

    def _behind(self, given: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        x = given + self.o(heads.transpose(1, 2).flatten(2))
        y = self.norms["mlp_norm"](x)
        found: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return found

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        half = self.model.head_dim // 2
        turn = self.model.theta ** (-torch.arange(half) / half)
        angles = torch.arange(x.shape[2])[:, None] * turn
        cos, sin, low, high = angles.cos(), angles.sin(), x[..., :half], x[..., half:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def _later(x: torch.Tensor, places: int, *, dim: int) -> torch.Tensor:
    """x moved towards the end, with zeros before it."""
    kept = x.narrow(dim, 0, x.shape[dim] - places)
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, places)), kept], dim=dim)
