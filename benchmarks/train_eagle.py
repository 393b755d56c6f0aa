"""Trains an EAGLE-1 head for a model on its own answers, and writes it as a safetensors folder.

    python benchmarks/train_eagle.py FOLDER [--prompts N] [--length N] [--minutes N]

It needs torch (the extra `oracle`) and a CPU. First the model writes answers, with `head_texts.py`,
and reads them again for the vectors of all tokens, those of the prompts too. Both are kept beside
FOLDER for the next run. Then the layer learns to expect the next vector, of which the model's own
head makes logits. It also learns from what it expected itself, because behind the first draft token
it has nothing else. What comes of it, `speculation.py --eagle FOLDER` measures.

The last lines are about answers that the head has not seen, as those of `train_heads.py` are: how
often each draft token is right if all before it are, and the tokens of a step that follow from it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from common import model_path, print_configuration
from head_texts import CONFIG, write_answers
from ours import add_engine_options, open_runner, versions
from torch.nn import functional
from train_heads import HELD_BACK, OTHERS, head_table, write_tensors

from mlc_llm.models.spec import AttentionSpec
from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.opening.bundle import open_model

TEXTS = 4
"""Of a batch."""
DEPTH = 4
"""Draft tokens that are measured."""
PASSES = 2
"""How often a batch is read: first with the model's vectors, then with those that the head expected
in the pass before."""
WITH_VECTOR = Sampling(temperature=0.0, wants_hidden=True)


class Text(NamedTuple):
    """What a model has read and written, with the vector of each token."""

    tokens: torch.Tensor
    vectors: torch.Tensor
    first: int
    """The first token of the answer."""


class Sizes(NamedTuple):
    """Those of the model's own layers."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    eps: float
    theta: float


class Head(torch.nn.Module):  # type: ignore[misc]
    """As `cnets1.py` of the authors computes it, of texts that stand alone."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, wide = sizes, sizes.hidden
        linear = torch.nn.Linear
        self.fc = linear(2 * wide, wide)
        kv = sizes.kv_heads * sizes.head_dim
        self.q = linear(wide, sizes.heads * sizes.head_dim, bias=False)
        self.k, self.v = linear(wide, kv, bias=False), linear(wide, kv, bias=False)
        self.o = linear(sizes.heads * sizes.head_dim, wide, bias=False)
        self.gate = linear(wide, sizes.intermediate, bias=False)
        self.up = linear(wide, sizes.intermediate, bias=False)
        self.down = linear(sizes.intermediate, wide, bias=False)
        self.norm = torch.nn.RMSNorm(wide, eps=sizes.eps)
        with torch.no_grad():  # it begins with the model's vector itself
            self.fc.weight[:, wide:] = torch.eye(wide)
            for one in (self.o.weight, self.down.weight, self.fc.bias):
                one.zero_()

    def forward(self, embedded: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Of each token the vector that it is expected to have. vectors: of the tokens before."""
        x = self.fc(torch.cat([embedded, vectors], dim=-1))
        x = x + self.o(self._attended(x))
        y = self.norm(x)
        found: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return found

    def _attended(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            one(x).reshape(batch, length, -1, self.sizes.head_dim).transpose(1, 2)
            for one in (self.q, self.k, self.v)
        )
        heads = functional.scaled_dot_product_attention(
            self._turned(q), self._turned(k), v, is_causal=True, enable_gqa=True
        )
        return heads.transpose(1, 2).reshape(batch, length, -1)

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        half = self.sizes.head_dim // 2
        angles = torch.arange(x.shape[2])[:, None] * self.sizes.theta ** (
            -torch.arange(half) / half
        )
        cos, sin = angles.cos(), angles.sin()
        low, high = x[..., :half], x[..., half:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class Batches:
    """Texts side by side, cut to the shortest of each batch."""

    def __init__(self, texts: Sequence[Text], table: torch.Tensor) -> None:
        self.texts, self.table = sorted(texts, key=lambda one: len(one.tokens)), table

    def shuffled(self, rng: np.random.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Tokens and vectors."""
        starts = np.arange(0, len(self.texts) - TEXTS + 1, TEXTS)
        for start in rng.permutation(starts).tolist():
            some = self.texts[start : start + TEXTS]
            length = min(len(one.tokens) for one in some)
            yield (
                torch.stack([one.tokens[:length] for one in some]),
                torch.stack([one.vectors[:length] for one in some]).float(),
            )


def learn(head: Head, batches: Batches, seconds: float) -> Iterator[str]:
    """Train for so many seconds."""
    rng, start, step = np.random.default_rng(0), time.monotonic(), 0
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, betas=(0.9, 0.95))
    for epoch in range(1000):
        total, count = 0.0, 0
        for tokens, vectors in batches.shuffled(rng):
            share = min((time.monotonic() - start) / seconds, 1.0)
            optimizer.param_groups[0]["lr"] = 1e-3 * min((step + 1) / 20, 1.0) * (1.02 - share)
            loss = _loss(head, tokens, vectors, batches.table, rng)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 0.5)
            optimizer.step()
            total, count, step = total + loss.item(), count + 1, step + 1
            if share == 1.0:
                return
        passed = time.monotonic() - start
        yield f"epoch {epoch}: loss {total / max(count, 1):.3f}, {step} batches, {passed:.0f} s"


def _loss(
    head: Head,
    tokens: torch.Tensor,
    vectors: torch.Tensor,
    table: torch.Tensor,
    rng: np.random.Generator,
) -> torch.Tensor:
    """The next tokens among some others, and how far the next vectors are."""
    others = torch.from_numpy(rng.integers(len(table), size=OTHERS))
    rows, places = torch.unique(torch.cat([tokens.flatten(), others]), return_inverse=True)
    few, places = table[rows], places[: tokens.numel()].reshape(tokens.shape)
    embedded, given, loss = table[tokens[:, 1:-1]], vectors[:, :-2], torch.zeros(())
    for one in range(PASSES):
        x = head(embedded, given)
        logits = (x[:, one:] @ few.T).flatten(0, 1)
        loss = loss + functional.cross_entropy(logits, places[:, 2 + one :].flatten())
        loss = loss + functional.smooth_l1_loss(x[:, one:], vectors[:, 1 + one : -1])
        given = torch.cat([given[:, :1], x[:, :-1]], dim=1)
    return loss


@torch.no_grad()  # type: ignore[untyped-decorator]
def accepted(head: Head, texts: Sequence[Text], table: torch.Tensor) -> tuple[list[float], int]:
    """Of each draft token: how often it and all before it are right; and of how many places."""
    right, places = np.zeros(DEPTH), 0
    for text in texts:
        tokens, vectors = text.tokens[None], text.vectors[None].float()
        for at in range(text.first, len(text.tokens) - DEPTH - 1, 3):
            said, given = tokens[:, : at + 1], vectors[:, :at]
            places += 1
            for depth in range(DEPTH):
                x = head(table[said[:, 1:]], given)
                token = (x[:, -1] @ table.T).argmax()
                if token != text.tokens[at + 1 + depth]:
                    break
                right[depth] += 1
                said = torch.cat([said, token.reshape(1, 1)], dim=1)
                given = torch.cat([given, x[:, -1:]], dim=1)
    return [float(one / places) for one in right], places


def write_folder(folder: Path, head: Head) -> None:
    """Names of the authors' folders, all in F16."""
    sizes, layer = head.sizes, "layers.0"
    modules = {f"{layer}.self_attn.{one}_proj.weight": getattr(head, one).weight for one in "qkvo"}
    modules |= {
        f"{layer}.mlp.{one}_proj.weight": getattr(head, one).weight
        for one in ("gate", "up", "down")
    }
    modules |= {
        f"{layer}.post_attention_layernorm.weight": head.norm.weight,
        "fc.weight": head.fc.weight,
        "fc.bias": head.fc.bias,
    }
    tensors = {name: one.detach().numpy().astype(np.float16) for name, one in modules.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", tensors)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "max_position_embeddings": 2048,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "num_hidden_layers": 1,
        "rms_norm_eps": sizes.eps,
        "rope_theta": sizes.theta,
        "vocab_size": sizes.vocab,
        "quantization": "q8_0",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def sizes_of(model: Path) -> Sizes:
    """Of the model's first layer, which has attention."""
    files = open_model(str(model)).files
    assert files is not None
    spec = files.plan().spec
    one, network = spec.layers[0].mixer, spec.layers[0].feed_forward
    assert isinstance(one, AttentionSpec) and one.rope is not None
    return Sizes(
        spec.hidden, one.heads, one.kv_heads, one.head_dim, network.width, spec.vocab,
        spec.norm_eps, spec.ropes[one.rope].theta,
    )  # fmt: skip


def vectors_of(runner: ModelRunner, tokens: list[int]) -> npt.NDArray[np.float16]:
    """The hidden vectors of a text."""
    runner.reset()
    runner.add_sequence(0)
    row = BatchRow(0, tokens, [WITH_VECTOR] * len(tokens))
    (samples,) = runner.run(Batch([row])).samples
    return np.array([one.hidden for one in samples], np.float16)


def texts_of(options: argparse.Namespace, model: Path) -> list[Text]:
    """Those that an earlier run has kept, or new ones."""
    kept = options.folder.with_name(f"{options.folder.name}-texts.npz")
    if not kept.is_file():
        runner = open_runner(model, options.kernels, options.threads, CONFIG)
        tokenizer, start = open_model(str(model)).tokenizer, time.monotonic()
        found: list[tuple[list[int], int]] = []
        for some in write_answers(runner, tokenizer, options.prompts, options.length):
            found += [(one.tokens, one.first) for one in some]
            print(f"{len(found)} answers, {time.monotonic() - start:.0f} s", flush=True)
        vectors = [vectors_of(runner, tokens) for tokens, _ in found]
        print(f"read again, {time.monotonic() - start:.0f} s", flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            kept,
            tokens=np.concatenate([tokens for tokens, _ in found]),
            vectors=np.concatenate(vectors),
            sizes=[(len(tokens), first) for tokens, first in found],
        )
    with np.load(kept) as file:
        tokens, found_vectors, sizes = file["tokens"], file["vectors"], file["sizes"]
    at, texts = 0, []
    for count, first in sizes.tolist():
        rows = slice(at, at + count)
        one = Text(torch.from_numpy(tokens[rows]), torch.from_numpy(found_vectors[rows]), first)
        texts.append(one)
        at += count
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_engine_options(parser)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, default=800)
    parser.add_argument("--length", type=int, default=200, help="tokens of an answer, at most")
    parser.add_argument("--minutes", type=float, default=25, help="of training")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = model_path(options.model)
    shown = {"prompts": options.prompts, "minutes": options.minutes}
    print_configuration("training of an EAGLE-1 head", model=model.name, **shown, **versions())
    texts, table = texts_of(options, model), torch.from_numpy(head_table(model))
    seen = [one for i, one in enumerate(texts) if i % HELD_BACK]
    unseen = [one for i, one in enumerate(texts) if not i % (2 * HELD_BACK)]  # greedy ones
    print(f"{sum(len(one.tokens) for one in seen)} tokens of {len(seen)} texts")
    head = Head(sizes_of(model))
    for line in learn(head, Batches(seen, table), 60 * options.minutes):
        print(line, flush=True)
    write_folder(options.folder, head)
    shares, places = accepted(head, unseen, table)
    print(f"{places} places of {len(unseen)} answers that were held back")
    print("each draft token, with all before it: " + ", ".join(f"{one:.3f}" for one in shares))
    print(f"tokens a step: {1 + sum(shares):.2f}")


if __name__ == "__main__":
    main()
