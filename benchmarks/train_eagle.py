"""Trains an EAGLE-3 head for the default model on its own answers, and writes it as a folder.

    python benchmarks/train_eagle.py FOLDER [--prompts N] [--length N] [--minutes N]

It needs torch (the extra `oracle`) and a CPU. First the model asks itself questions and answers
them, with `head_texts.py`; the texts are kept beside FOLDER for the next run. Then a layer learns,
from what the model's layers make of the tokens before, which tokens the model holds for likely. It
learns in passes: behind the model's vectors, then behind its own ones, as when it drafts. Vectors
of a text are computed when it is first read. What comes of it, `speculation.py --eagle FOLDER`
measures.

The last lines are about greedy answers to questions that the head has not seen: how often each
draft token is right if all before it are, and the tokens of a step that follow from it.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common import model_path, print_configuration
from eagle_head import Head
from float_model import FloatModel
from head_texts import CONFIG, Answer, own_questions, write_answers
from muon import Muon
from ours import add_engine_options, open_runner, versions
from torch.nn import functional
from train_heads import HELD_BACK, write_tensors

from mlc_llm.serve.opening.bundle import open_model

NOTHING = np.zeros((0, 0), np.float16)
TEXTS = 8
"""Read at once. Two of such batches make a step."""
FRESH, AGAIN = 4, 2
"""New batches before some that were read before."""
DEPTH = 3
"""Passes, and draft tokens that are measured."""
LIKELY = 16
"""Tokens whose likelihoods are learnt."""
RATE, RATE_OF_HEAD = 3e-3, 6e-4
WEIGHT = 0.8
"""Of each pass, as a share of the one before."""


class Batch(NamedTuple):
    """Texts side by side, filled with zeros."""

    tokens: torch.Tensor
    lengths: list[int]
    tapped: torch.Tensor
    """The vectors of the taps, float16."""
    answer: torch.Tensor
    """Where tokens of answers are, and the one before them."""
    ids: torch.Tensor
    """Of each of these: the likeliest next tokens."""
    shares: torch.Tensor
    """How likely they are."""


class Reader:
    """Makes batches."""

    def __init__(self, model: FloatModel, tokens: torch.Tensor) -> None:
        """tokens: those that the head can draft."""
        self.model = model
        self._place = torch.full((model.vocab,), -1)
        self._place[tokens] = torch.arange(len(tokens))

    def read(self, texts: Sequence[Answer]) -> Batch:
        """The texts, and what the model makes of them."""
        lengths = [len(one.tokens) for one in texts]
        tokens = torch.zeros(len(texts), max(lengths), dtype=torch.long)
        answer = torch.zeros_like(tokens, dtype=torch.bool)
        for i, one in enumerate(texts):
            tokens[i, : lengths[i]] = torch.tensor(one.tokens)
            answer[i, one.first : lengths[i] - 1] = True
        tapped, last = self.model(tokens)
        likely = (last[answer] @ self.model.table.T).softmax(-1).topk(LIKELY)
        return Batch(tokens, lengths, tapped.half(), answer, likely.indices, likely.values)

    def wanted(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the head that should be likely behind each token of an answer, and how much."""
        places = self._place[batch.ids]
        shares = batch.shares * (places >= 0)
        return places.clamp_min(0), shares / shares.sum(-1, keepdim=True).clamp_min(1e-3)


def loss_of(head: Head, reader: Reader, batch: Batch, passes: int) -> torch.Tensor:
    """How far the head's likelihoods are from the model's, over the passes."""
    places, shares = reader.wanted(batch)
    loss, number = torch.zeros(()), torch.full(batch.answer.shape, -1)
    number[batch.answer] = torch.arange(len(places))
    for one, x in enumerate(head.passes(batch.tokens, batch.tapped.float(), passes)):
        rows = number[:, 1:].clone()
        rows[:, :one] = -1
        used = rows[rows >= 0]
        found = functional.log_softmax(head.logits(x[rows >= 0]), dim=-1)
        far = -(shares[used] * found.gather(-1, places[used])).sum(-1)
        loss = loss + WEIGHT**one * far.mean()
    return loss


class Learning:
    """The optimisers of a head."""

    def __init__(self, head: Head) -> None:
        self._head, self._muon, self._steps = head, Muon(head.matrices), 0
        of_layer = {id(one) for one in head.matrices}
        others = [one for one in head.parameters() if id(one) not in of_layer]
        self._adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, reader: Reader, batches: Sequence[Batch], share: float) -> float:
        """The loss. share: of the time, that has passed."""
        self._head.zero_grad()
        passes, total = min(1 + int(share * 4), DEPTH), 0.0
        for one in batches:
            loss = loss_of(self._head, reader, one, passes) / len(batches)
            loss.backward()
            total += loss.item()
        self._steps += 1
        pace = 0.02 + 0.49 * (1 + math.cos(math.pi * share))
        pace *= min(self._steps / 15, 1.0)
        self._adam.param_groups[0]["lr"] = RATE_OF_HEAD * pace
        self._adam.step()
        self._muon.step(RATE * pace)
        return total


def learn(head: Head, reader: Reader, texts: Sequence[Answer], seconds: float) -> Iterator[str]:
    """Train for so many seconds."""
    rng, learning, known = np.random.default_rng(0), Learning(head), list[Batch]()
    start, steps, fresh = time.monotonic(), 0, groups(texts, rng)
    while (share := (time.monotonic() - start) / seconds) < 1.0:
        new = [reader.read(some) for some in itertools.islice(fresh, FRESH)]
        known += new
        more = AGAIN if new else FRESH + AGAIN
        new += [known[int(i)] for i in rng.integers(len(known), size=more)]
        for at in range(0, len(new), 2):
            loss = learning.step(reader, new[at : at + 2], min(share, 1.0))
            steps += 1
        yield f"{steps} steps, {len(known)} batches read, loss {loss:.3f}, {share:.0%} of the time"


def groups(texts: Sequence[Answer], rng: np.random.Generator) -> Iterator[list[Answer]]:
    """Texts of about one length, in any order."""
    ordered = sorted(texts, key=lambda one: len(one.tokens))
    for start in rng.permutation(np.arange(0, len(ordered), TEXTS)).tolist():
        yield ordered[start : start + TEXTS]


@torch.no_grad()  # type: ignore[untyped-decorator]
def accepted(head: Head, reader: Reader, texts: Sequence[Answer]) -> tuple[list[float], int]:
    """Of each draft token: how often it and all before it are right; and of how many places."""
    right, places = np.zeros(DEPTH), 0
    for start in range(0, len(texts), TEXTS):
        batch = reader.read(texts[start : start + TEXTS])
        passes = head.passes(batch.tokens, batch.tapped.float(), DEPTH)
        said = [head.tokens[head.logits(x).argmax(-1)] for x in passes]
        # The first draft of column c is token c + 2, and the pass p has the token p behind it.
        count = batch.tokens.shape[1] - DEPTH - 1
        good = batch.answer[:, 1 : count + 1].clone()
        for row, length in enumerate(batch.lengths):
            good[row, max(length - DEPTH - 1, 0) :] = False
        places += int(good.sum())
        for depth, tokens in enumerate(said):
            follows = batch.tokens[:, depth + 2 : depth + 2 + count]
            good &= tokens[:, depth : depth + count] == follows
            right[depth] += int(good.sum())
    return [float(one / max(places, 1)) for one in right], places


def write_folder(folder: Path, head: Head) -> None:
    """Names of the authors' folders, all in F16."""
    layer, norms = "midlayer", head.norms
    modules = {f"{layer}.self_attn.{one}_proj.weight": getattr(head, one).weight for one in "qkvo"}
    modules |= {
        f"{layer}.mlp.{one}_proj.weight": getattr(head, one).weight
        for one in ("gate", "up", "down")
    }
    modules |= {
        f"{layer}.input_layernorm.weight": norms["embedding_norm"].weight,
        f"{layer}.hidden_norm.weight": norms["hidden_norm"].weight,
        f"{layer}.post_attention_layernorm.weight": norms["mlp_norm"].weight,
        "norm.weight": norms["norm"].weight,
        "fc.weight": head.fc.weight,
        "lm_head.weight": head.head.weight,
    }
    tensors = {name: one.detach().numpy().astype(np.float16) for name, one in modules.items()}
    offsets = head.tokens - torch.arange(len(head.tokens))
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", {**tensors, "d2t": offsets.numpy()})
    (folder / "config.json").write_text(json.dumps(config_of(head), indent=1))


def config_of(head: Head) -> dict[str, object]:
    """The fields of a head's folder."""
    model = head.model
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": head.up.weight.shape[0],
        "max_position_embeddings": 2048,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "num_hidden_layers": 1,
        "rms_norm_eps": model.eps,
        "rope_theta": model.theta,
        "vocab_size": model.vocab,
        "draft_vocab_size": len(head.tokens),
        "eagle_aux_hidden_state_layer_ids": list(model.taps),
        "quantization": "q8_0",
    }


def texts_of(options: argparse.Namespace, model: Path) -> list[Answer]:
    """Those that an earlier run has kept, or new ones."""
    kept = options.folder.with_name(f"{options.folder.name}-texts.json")
    if not kept.is_file():
        runner = open_runner(model, options.kernels, options.threads, CONFIG)
        tokenizer, start = open_model(str(model)).tokenizer, time.monotonic()
        asked, found = own_questions(runner, tokenizer, options.prompts), list[Answer]()
        for some in write_answers(runner, tokenizer, len(asked), options.length, asked):
            found += some
            print(f"{len(found)} answers, {time.monotonic() - start:.0f} s", flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([(one.tokens, one.first) for one in found]))
    read = json.loads(kept.read_text(encoding="utf-8"))
    return [Answer(tokens, first, NOTHING) for tokens, first in read if len(tokens) > first + 8]


def commonest(texts: Sequence[Answer], count: int) -> torch.Tensor:
    """So many tokens of the texts, in rising order; first ones of the vocabulary, if they have
    fewer."""
    used = collections.Counter(token for one in texts for token in one.tokens[one.first :])
    found = dict.fromkeys([token for token, _ in used.most_common(count)])
    found |= dict.fromkeys(
        itertools.islice((i for i in range(count) if i not in found), count - len(found))
    )
    return torch.tensor(sorted(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_engine_options(parser)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, default=1200)
    parser.add_argument("--length", type=int, default=200, help="tokens of an answer, at most")
    parser.add_argument("--tokens", type=int, default=6144, help="that the head can draft")
    parser.add_argument("--minutes", type=float, default=40, help="of training")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = model_path(options.model)
    shown = {"prompts": options.prompts, "minutes": options.minutes}
    print_configuration("training of an EAGLE-3 head", model=path.name, **shown, **versions())
    texts = texts_of(options, path)
    seen = [one for i, one in enumerate(texts) if i % HELD_BACK]
    unseen = [one for i, one in enumerate(texts) if not i % (2 * HELD_BACK)]  # greedy ones
    print(f"{sum(len(one.tokens) for one in seen)} tokens of {len(seen)} texts")
    tokens, layers = commonest(seen, options.tokens), FloatModel.depth_of(path)
    model = FloatModel(path, (layers // 3, 2 * layers // 3, layers))
    head, reader = Head(model, tokens), Reader(model, tokens)
    for line in learn(head, reader, seen, 60 * options.minutes):
        print(line, flush=True)
    write_folder(options.folder, head)
    shares, places = accepted(head, reader, unseen)
    print(f"{places} places of {len(unseen)} answers that were held back")
    print("each draft token, with all before it: " + ", ".join(f"{one:.3f}" for one in shares))
    print(f"tokens a step: {1 + sum(shares):.2f}")


if __name__ == "__main__":
    main()
