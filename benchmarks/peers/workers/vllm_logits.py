"""Logits of vLLM: `vllm_logits.py FOLDER PIECES TARGET`, in its environment.

Its answers have the probabilities of few tokens only. So a hook keeps what the last norm gives for
every token of a prompt, and the model's own head makes logits of it.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from vllm import LLM, SamplingParams
from vllm_worker import open_model


class Kept:
    """The output of the last norm in the newest step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self.states = torch.empty(0)
        model.model.norm.register_forward_hook(self._keep)

    def _keep(self, _norm: object, _given: object, made: tuple[torch.Tensor, ...]) -> None:
        """With a residual sum, a norm gives a pair."""
        self.states = (made[0] if isinstance(made, tuple) else made).clone()

    def logits(self, count: int) -> np.ndarray:
        """[count, vocabulary]."""
        found = self._model.compute_logits(self.states[:count])
        return np.array(found.float().numpy(), np.float32)


def logits(engine: LLM, kept: Kept, ids: np.ndarray) -> np.ndarray:
    once = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    engine.generate({"prompt_token_ids": [int(i) for i in ids]}, once, use_tqdm=False)
    return kept.logits(len(ids))


if __name__ == "__main__":
    folder, pieces, target = sys.argv[1:]
    engine = open_model(folder)
    (kept,) = engine.apply_model(Kept)
    np.save(target, np.array([logits(engine, kept, piece) for piece in np.load(pieces)]))
