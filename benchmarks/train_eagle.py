"""Trains an EAGLE-3 head for the default model on its own answers, and writes it as a folder.

    python benchmarks/train_eagle.py FOLDER [--prompts N] [--length N] [--minutes N]

It needs torch (the extra `oracle`) and a CPU. First the model answers questions
(`user_questions.py`), many of which it ends itself; texts, and what some layers make of their
tokens, are kept beside FOLDER for the next run (`eagle_texts.py`). Then a layer learns, from the
vectors of the tokens before, how likely the model holds each next token. It learns in passes:
behind the model's vectors, then behind its own ones, as when it drafts. What comes of it,
`speculation.py --eagle FOLDER` measures.

The last lines are about greedy answers to questions that the head has not seen: how often each
draft token is right if all before it are, and the tokens of a step that follow from it. Minutes are
those of processors, divided by the number of threads: other work beside it does not count.
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
from bf16 import NUMBERS, distance, normed, product
from common import model_path, print_configuration
from eagle_head import Head
from eagle_texts import HELD_BACK, Text, Texts, make_texts, read_texts
from float_model import FloatModel
from head_files import write_tensors
from muon import Muon
from ours import add_engine_options, versions

TEXTS = 12
"""Of a step."""
DEPTH = 3
"""Passes, and draft tokens that are measured."""
SCHEDULE = (1, 1, 1, 1, 1, 2, 2, 2, 2, 3)
"""Passes, in each tenth of the time."""
RATE, RATE_OF_HEAD = 4e-3, 8e-4
WEIGHT = 0.8
"""Of each pass, as a share of the one before."""
SHORTEST = 8
"""Answers of at most so many tokens teach nothing."""
SAID = 20
"""Steps from one line about them to the next."""
BEGIN = 15
"""Steps until the rate is reached."""
ROOM = 2.0**14
"""The numbers of vectors are at most so great: a quarter of the greatest one of F16."""


class Batch(NamedTuple):
    """Texts side by side, filled with zeros."""

    tokens: torch.Tensor
    lengths: list[int]
    tapped: torch.Tensor
    """The vectors of the taps."""
    answer: torch.Tensor
    """Where tokens of answers are, and the one before them."""


class Reader:
    """Makes batches."""

    def __init__(self, model: FloatModel, texts: Texts, tokens: torch.Tensor) -> None:
        """tokens: those that the head can draft."""
        self._model, self._vectors = model, texts.vectors
        self._can_draft = torch.zeros(model.vocab, dtype=torch.bool)
        self._can_draft[tokens] = True
        self._table = model.table[tokens].to(NUMBERS)

    def read(self, texts: Sequence[Text]) -> Batch:
        lengths = [len(one.tokens) for one in texts]
        shape = len(texts), max(lengths)
        tokens, answer = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
        tapped = torch.zeros(*shape, self._vectors.shape[1], dtype=NUMBERS)
        for i, (one, length) in enumerate(zip(texts, lengths, strict=True)):
            tokens[i, :length] = torch.tensor(one.tokens)
            tapped[i, :length] = torch.from_numpy(self._vectors[one.at : one.at + length].copy())
            answer[i, one.first : length - 1] = True
        return Batch(tokens, lengths, tapped, answer)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def wanted(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each token of an answer: how likely the model holds each token that the head can draft
        to be the next one; and whether it can draft the one that came."""
        last = batch.tapped[batch.answer][:, -self._model.hidden :]
        x = normed(last, self._model.norm, self._model.eps).to(NUMBERS)
        came = self._can_draft[batch.tokens.roll(-1, 1)][batch.answer]
        return (x @ self._table.T).float().softmax(-1), came


def loss_of(head: Head, reader: Reader, batch: Batch, passes: int) -> torch.Tensor:
    """How far the head's likelihoods are from the model's, over the passes."""
    shares, came = reader.wanted(batch)
    loss, number = torch.zeros(()), torch.full(batch.answer.shape, -1)
    number[batch.answer] = torch.arange(len(shares)).where(came, -1)
    for one, x in enumerate(head.passes(batch.tokens, batch.tapped, passes)):
        rows = number[:, 1:].clone()
        rows[:, :one] = -1
        used = rows >= 0
        far = distance(head.last_normed(x[used]), head.head, shares[rows[used]])
        loss = loss + WEIGHT**one * far
    return loss


class Learning:
    """The optimisers of a head."""

    def __init__(self, head: Head) -> None:
        self._head, self._muon, self._steps = head, Muon(head.matrices), 0
        of_layer = {id(one) for one in head.matrices}
        others = [one for one in head.parameters() if id(one) not in of_layer]
        self._adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, reader: Reader, batch: Batch, share: float) -> float:
        """The loss. share: of the time, that has passed."""
        self._head.zero_grad()
        loss = loss_of(self._head, reader, batch, SCHEDULE[int(share * len(SCHEDULE))])
        loss.backward()
        self._steps += 1
        pace = (0.02 + 0.49 * (1 + math.cos(math.pi * share))) * min(self._steps / BEGIN, 1.0)
        self._adam.param_groups[0]["lr"] = RATE_OF_HEAD * pace
        self._adam.step()
        self._muon.step(RATE * pace)
        found: float = loss.item()
        return found


def learn(head: Head, reader: Reader, texts: Sequence[Text], seconds: float) -> Iterator[str]:
    """Train for so many seconds of processors."""
    rng, learning = np.random.default_rng(0), Learning(head)
    fresh = itertools.chain.from_iterable(groups(texts, rng) for _ in itertools.count())
    start, losses, share = time.process_time(), collections.deque[float](maxlen=SAID), 0.0
    for steps in itertools.count():
        if steps and steps % SAID == 0:
            mean, rounds = sum(losses) / SAID, steps * TEXTS / len(texts)
            yield f"{steps} steps, {rounds:.2f} rounds, loss {mean:.3f}, {share:.0%} of the time"
        share = (time.process_time() - start) / seconds
        if share >= 1.0:
            return
        losses.append(learning.step(reader, reader.read(next(fresh)), share))


def groups(texts: Sequence[Text], rng: np.random.Generator) -> Iterator[list[Text]]:
    """Texts of about one length, in any order."""
    ordered = sorted(texts, key=lambda one: len(one.tokens))
    for start in rng.permutation(np.arange(0, len(ordered), TEXTS)).tolist():
        yield ordered[start : start + TEXTS]


@torch.no_grad()  # type: ignore[untyped-decorator]
def accepted(head: Head, reader: Reader, texts: Sequence[Text]) -> tuple[list[float], int]:
    """Of each draft token: how often it and all before it are right; and of how many places."""
    right, places = np.zeros(DEPTH), 0
    for start in range(0, len(texts), TEXTS):
        batch = reader.read(texts[start : start + TEXTS])
        passes = head.passes(batch.tokens, batch.tapped, DEPTH)
        said = [head.tokens[(head.last_normed(x) @ head.head.T).argmax(-1)] for x in passes]
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


@torch.no_grad()  # type: ignore[untyped-decorator]
def fitting(head: Head, reader: Reader, texts: Sequence[Text]) -> float:
    """A power of two with which the head's vectors of all tokens can be written in F16. The first
    token's numbers are beyond it, in these models. All vectors are normed when they are read."""
    greatest = 0.0
    for start in range(0, len(texts), TEXTS):
        vectors = product(reader.read(texts[start : start + TEXTS]).tapped, head.weights["fc"])
        greatest = max(greatest, float(vectors.float().abs().max()))
    return min(2.0 ** math.floor(math.log2(ROOM / greatest)), 1.0)


def write_folder(folder: Path, head: Head, scale: float) -> None:
    """Names of the authors' folders, all in F16. scale: of vectors (`fitting`)."""
    layer, own, norms = "midlayer", head.weights, head.norms
    parts = {f"{layer}.self_attn.{one}_proj.weight": own[one] for one in "qkvo"}
    parts |= {f"{layer}.mlp.{one}_proj.weight": own[one] for one in ("gate", "up", "down")}
    parts |= {
        f"{layer}.input_layernorm.weight": norms["embedding_norm"],
        f"{layer}.hidden_norm.weight": norms["hidden_norm"],
        f"{layer}.post_attention_layernorm.weight": norms["mlp_norm"],
        "norm.weight": norms["norm"],
        "fc.weight": scale * own["fc"],
        "lm_head.weight": head.head,
    }
    tensors = {name: one.detach().numpy().astype(np.float16) for name, one in parts.items()}
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
        "intermediate_size": head.weights["up"].shape[0],
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
        "norm_before_residual": True,
        "quantization": "q4_1",
    }


def commonest(texts: Sequence[Text], count: int) -> torch.Tensor:
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
    parser.add_argument("--prompts", type=int, default=4000)
    parser.add_argument("--length", type=int, default=220, help="tokens of an answer, at most")
    parser.add_argument("--tokens", type=int, default=4096, help="that the head can draft")
    parser.add_argument("--minutes", type=float, default=36, help="of training")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = model_path(options.model)
    shown = {"prompts": options.prompts, "minutes": options.minutes, "numbers": NUMBERS}
    print_configuration("training of an EAGLE-3 head", model=path.name, **shown, **versions())
    layers = FloatModel.depth_of(path)
    model = FloatModel(path, (2, layers // 3, 2 * layers // 3, layers))
    kept = options.folder.with_name(f"{options.folder.name}-texts")
    if not kept.with_suffix(".json").is_file():
        make_texts(path, model.taps, kept, options.prompts, options.length)
    texts = read_texts(kept, model.taps, len(model.taps) * model.hidden)
    unseen, seen = texts.known[:HELD_BACK], texts.known[HELD_BACK:]
    seen = [one for one in seen if len(one.tokens) > one.first + SHORTEST]
    print(f"{sum(len(one.tokens) for one in seen)} tokens of {len(seen)} texts")
    tokens = commonest(seen, options.tokens)
    head, reader = Head(model, tokens), Reader(model, texts, tokens)
    for line in learn(head, reader, seen, 60 * options.minutes * options.threads):
        print(line, flush=True)
    write_folder(options.folder, head, fitting(head, reader, unseen))
    shares, places = accepted(head, reader, unseen)
    print(f"{places} places of {len(unseen)} answers about what no learnt text is about")
    print("each draft token, with all before it: " + ", ".join(f"{one:.3f}" for one in shares))
    print(f"tokens a step: {1 + sum(shares):.2f}")


if __name__ == "__main__":
    main()
