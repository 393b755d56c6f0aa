"""Trains Medusa heads for a model on its own answers, and writes them as a safetensors folder.

    python benchmarks/train_heads.py FOLDER [--prompts N] [--length N] [--heads N] [--minutes N]

It needs torch (the extra `oracle`) and a CPU. First the model writes answers, with `head_texts.py`,
which are kept beside FOLDER for the next run. Then the blocks of the heads learn to say what the
model said some places later. The matrix of each head over the vocabulary stays the model's own one:
to learn it as well would take hours. What comes of it, `speculation.py --heads FOLDER` measures.

The last lines are about answers that the heads have not seen: how often each head is right if all
before it are, and the tokens of a step that follow from it, the model's own token included. Only
the likeliest token of a head counts, and only greedy answers are looked at. These are heads in
floats. The folder asks for `q4_0`, which is right a little less often and reads a fourth of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from common import model_path, print_configuration
from head_files import write_tensors
from head_texts import CONFIG, Answer, write_answers
from ours import add_engine_options, open_runner, versions

from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.serve.opening.bundle import open_model

BATCH = 256
OTHERS = 512
"""Tokens, chosen at random, from which a head has to tell the right one while it learns, beside all
that the batch has. All that occur would be five times as slow."""
HELD_BACK = 16
"""One of so many answers is not learnt from."""
Floats = npt.NDArray[np.float32]


class Pairs:
    """Vectors [n, hidden], and of each the tokens [n, heads] that the heads should say."""

    def __init__(self, answers: list[Answer], heads: int) -> None:
        vectors, tokens = [], []
        for one in answers:
            usable = min(len(one.vectors), len(one.tokens) - one.first - heads)
            if usable <= 0:
                continue
            vectors.append(one.vectors[:usable])
            behind = np.array(one.tokens[one.first + 1 :])
            tokens.append(np.stack([behind[i : i + usable] for i in range(heads)], axis=1))
        self.vectors = torch.from_numpy(np.concatenate(vectors))
        self.tokens = torch.from_numpy(np.concatenate(tokens))

    def batches(self, rng: np.random.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All of them once, in another order each time."""
        for rows in torch.from_numpy(rng.permutation(len(self.vectors))).split(BATCH):
            yield self.vectors[rows].float(), self.tokens[rows]


class Heads(torch.nn.Module):  # type: ignore[misc]
    """The blocks of all heads: x += silu(linear(x)), which begins as x itself."""

    def __init__(self, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        linear = [[torch.nn.Linear(width, width) for _ in range(blocks)] for _ in range(heads)]
        self.blocks = torch.nn.ModuleList([torch.nn.ModuleList(one) for one in linear])
        for parameter in self.parameters():
            torch.nn.init.zeros_(parameter)

    def vectors(self, head: int, x: torch.Tensor) -> torch.Tensor:
        """What the matrix over the vocabulary is multiplied with."""
        for block in self.blocks[head]:
            x = x + torch.nn.functional.silu(block(x))
        return x


def learn(heads: Heads, pairs: Pairs, table: torch.Tensor, seconds: float) -> Iterator[str]:
    """Train for so many seconds. table: rows of the tokens that occur, which `pairs` counts in."""
    rng, start, step = np.random.default_rng(0), time.monotonic(), 0
    optimizer = torch.optim.AdamW(heads.parameters(), lr=1e-3, weight_decay=0.01)
    for epoch in range(1000):
        total, count = 0.0, 0
        for x, tokens in pairs.batches(rng):
            share = min((time.monotonic() - start) / seconds, 1.0)
            warm = min((step + 1) / 50, 1.0)
            optimizer.param_groups[0]["lr"] = 2e-3 * warm * (1.02 - share)
            loss = _loss(heads, x, tokens, table, rng)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, count, step = total + loss.item(), count + 1, step + 1
            if share == 1.0:
                return
        yield f"epoch {epoch}: loss {total / count:.3f}, {time.monotonic() - start:.0f} s"


def _loss(
    heads: Heads,
    x: torch.Tensor,
    tokens: torch.Tensor,
    table: torch.Tensor,
    rng: np.random.Generator,
) -> torch.Tensor:
    """Of a batch. Later heads count less: their tokens are accepted more seldom."""
    others = torch.from_numpy(rng.integers(len(table), size=OTHERS))
    rows, places = torch.unique(torch.cat([tokens.flatten(), others]), return_inverse=True)
    wanted, few = places[: tokens.numel()].reshape(tokens.shape), table[rows]
    loss = torch.zeros(())
    for head in range(len(heads.blocks)):
        logits = heads.vectors(head, x) @ few.T
        loss = loss + 0.8**head * torch.nn.functional.cross_entropy(logits, wanted[:, head])
    return loss


@torch.no_grad()  # type: ignore[untyped-decorator]
def accepted(heads: Heads, pairs: Pairs, table: torch.Tensor) -> list[float]:
    """Of each head: how often it and all before it are right."""
    right = torch.ones(len(pairs.vectors), dtype=torch.bool)
    found = []
    for head in range(len(heads.blocks)):
        said = [
            (heads.vectors(head, x.float()) @ table.T).argmax(1) for x in pairs.vectors.split(BATCH)
        ]
        right &= torch.cat(said) == pairs.tokens[:, head]
        found.append(float(right.float().mean()))
    return found


def write_folder(folder: Path, heads: Heads, table: Floats) -> None:
    """All in F16."""
    tensors: dict[str, npt.NDArray[np.generic]] = {}
    for i, blocks in enumerate(heads.blocks):
        for j, block in enumerate(blocks):
            for name, one in block.named_parameters():
                tensors[f"{i}.{j}.linear.{name}"] = one.detach().numpy().astype(np.float16)
        tensors[f"{i}.{len(blocks)}.weight"] = table.astype(np.float16)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "medusa_lm_head.safetensors", tensors)
    config = {
        "medusa_num_heads": len(heads.blocks),
        "medusa_num_layers": len(heads.blocks[0]),
        "quantization": "q4_0",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def head_table(model: Path) -> Floats:
    """The model's own matrix over the vocabulary."""
    files = open_model(str(model)).files
    assert files is not None
    name = "output.weight" if "output.weight" in files.tensors else "token_embd.weight"
    tensor = files.tensors[name]
    return np.ascontiguousarray(dequantize(tensor.kind, tensor.data, tensor.shape))


def answers_of(options: argparse.Namespace, model: Path) -> list[Answer]:
    """Those that an earlier run has kept, or new ones."""
    kept = options.folder.with_name(f"{options.folder.name}-answers.npz")
    if not kept.is_file():
        runner = open_runner(model, options.kernels, options.threads, CONFIG)
        tokenizer, start = open_model(str(model)).tokenizer, time.monotonic()
        found: list[Answer] = []
        for some in write_answers(runner, tokenizer, options.prompts, options.length):
            found += some
            count, seconds = sum(len(one.vectors) for one in found), time.monotonic() - start
            print(f"{len(found)} answers, {count} tokens, {seconds:.0f} s", flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            kept,
            tokens=np.concatenate([one.tokens for one in found]),
            vectors=np.concatenate([one.vectors for one in found]),
            sizes=[(len(one.tokens), one.first, len(one.vectors)) for one in found],
        )
    with np.load(kept) as file:
        tokens, vectors, sizes = file["tokens"], file["vectors"], file["sizes"]
    at, row, answers = 0, 0, []
    for count, first, rows in sizes.tolist():
        answers.append(Answer(tokens[at : at + count].tolist(), first, vectors[row : row + rows]))
        at, row = at + count, row + rows
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_engine_options(parser)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, default=800)
    parser.add_argument("--length", type=int, default=200, help="tokens of an answer, at most")
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=25, help="of training")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = model_path(options.model)
    shown = {"heads": options.heads, "blocks": options.blocks, "minutes": options.minutes}
    print_configuration("training of Medusa heads", model=model.name, **shown, **versions())
    answers, table = answers_of(options, model), head_table(model)
    seen = [one for i, one in enumerate(answers) if i % HELD_BACK]
    unseen = [one for i, one in enumerate(answers) if not i % (2 * HELD_BACK)]  # greedy ones
    pairs, tried = Pairs(seen, options.heads), Pairs(unseen, options.heads)
    used, numbers = torch.unique(pairs.tokens, return_inverse=True)
    pairs.tokens = numbers
    print(f"{len(pairs.vectors)} tokens of {len(seen)} answers; {len(used)} different ones")
    heads, full = Heads(table.shape[1], options.heads, options.blocks), torch.from_numpy(table)
    for line in learn(heads, pairs, full[used], 60 * options.minutes):
        print(line, flush=True)
    write_folder(options.folder, heads, table)
    shares = accepted(heads, tried, full)
    print(f"{len(tried.vectors)} tokens of {len(unseen)} answers that were held back")
    print("each head, with all before it: " + ", ".join(f"{one:.3f}" for one in shares))
    print(f"tokens a step: {1 + sum(shares):.2f}")


if __name__ == "__main__":
    main()
