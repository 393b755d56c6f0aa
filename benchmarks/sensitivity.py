"""How small a difference the accuracy measure shows: the oracle and altered copies of it.

    python benchmarks/sensitivity.py [--model FILE.gguf]

It needs the `oracle` extra and a run of `oracle.py` before. Float64 shows how much the order and
the precision of arithmetic change the oracle. Activations rounded to 8 and 12 bits (one scale for
32 values, before every matrix product) show the error of engines with such activations.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import torch
from agreement import Agreement, OracleAnswers, common_prefix, compare_forced, perplexity_ratio
from common import model_path, oracle_folder, print_configuration, read_json
from oracle import Oracle
from torch import nn

GROUP = 32
Inputs = tuple[torch.Tensor, ...]


class Altered:
    """The oracle's model with rounded activations or wider numbers."""

    def __init__(self, oracle: Oracle, bits: int | None, wide: bool) -> None:
        self.oracle = oracle
        oracle.model.to(torch.float64 if wide else torch.float32)
        linear = [m for m in oracle.model.modules() if isinstance(m, nn.Linear)] if bits else []
        self.hooks = [m.register_forward_pre_hook(rounding(bits or 0)) for m in linear]

    def logits(self, token_ids: Sequence[int], *, chunk: int | None = None) -> np.ndarray:
        """`chunk` has no effect: the whole sequence is one step."""
        return self.oracle.logits(list(token_ids))

    def close(self) -> None:
        """Leave the model as it was."""
        for hook in self.hooks:
            hook.remove()
        self.oracle.model.to(torch.float32)


def rounding(bits: int) -> Callable[[nn.Module, Inputs], Inputs]:
    """A hook that rounds a layer's input to symmetric integers of so many bits."""
    top = 2 ** (bits - 1) - 1

    def hook(_layer: nn.Module, inputs: Inputs) -> Inputs:
        grouped = inputs[0].unflatten(-1, (-1, GROUP))
        scale = (grouped.abs().amax(-1, keepdim=True) / top).clamp_min(1e-30)
        return ((torch.round(grouped / scale) * scale).flatten(-2),)

    return hook


def same_greedy(oracle: Oracle) -> str:
    """How many ids of each known greedy answer come out, as `8/8 64/64 64/64`."""
    cases = read_json("greedy.json")["cases"]
    answers = [oracle.greedy(case["prompt_ids"], len(case["answer_ids"])) for case in cases]
    pairs = zip(answers, [case["answer_ids"] for case in cases], strict=True)
    return " ".join(f"{common_prefix(answer, known)}/{len(known)}" for answer, known in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="GGUF file (the default model if not given)")
    parser.add_argument("--oracle", help="folder of the oracle's answers (found if not given)")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    path = model_path(arguments.model)
    answers = OracleAnswers.read(oracle_folder(path, arguments.oracle))
    print_configuration("the oracle against altered copies", model=path.name)
    oracle = Oracle(path)
    for name, bits, wide in (
        ("float64", None, True),
        ("float32", None, False),
        ("12-bit", 12, False),
        ("8-bit", 8, False),
    ):
        altered = Altered(oracle, bits, wide)
        total = Agreement.joined(compare_forced(altered, answers, None))
        ratio = perplexity_ratio(altered, answers, None)
        print(f"{name:8s} {total}   perplexity {ratio:.6f}   greedy {same_greedy(oracle)}")
        altered.close()


if __name__ == "__main__":
    main()
