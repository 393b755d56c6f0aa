"""The tower of Gemma 3 with random weights, compiled from a folder, against Transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

from mlc_llm.compiler.jit import prepare  # noqa: E402
from mlc_llm.images.pixels import patches  # noqa: E402
from mlc_llm.loader.huggingface import HuggingFaceFolder  # noqa: E402
from mlc_llm.model_files.tower import tower_of_folder  # noqa: E402
from mlc_llm.runtime.image_runner import ImageRunner  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
SHAPES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
              "num_attention_heads": 4, "image_size": 56, "patch_size": 14},
    "odd": {"hidden_size": 96, "intermediate_size": 100, "num_hidden_layers": 2,
            "num_attention_heads": 4, "image_size": 99, "patch_size": 8, "hidden_act": "gelu"},
}  # fmt: skip
WORST = {"reference": 1e-5, None: 1e-4}
"""Of the largest number, by kernels; None: those of this machine."""


@dataclass(frozen=True)
class Numbers:
    """An image as numbers."""

    numbers: npt.NDArray[np.float32]
    patch: int
    tokens: int
    digest: bytes = b"image"

    def patches(self) -> npt.NDArray[np.float32]:
        size = self.numbers.shape[1] // self.patch * self.patch
        return patches(np.ascontiguousarray(self.numbers[:, :size, :size]), self.patch)


def random_gemma(vision: dict[str, Any], tokens: int) -> Any:
    text = {
        "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 64,
    }  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text, vision_config={**vision, "vision_use_head": False},
        mm_tokens_per_image=tokens, image_token_index=299,
    )  # fmt: skip
    torch.manual_seed(5)
    model = transformers.Gemma3ForConditionalGeneration(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(torch.randn_like(weights) * 0.3 / max(weights.shape) ** 0.25)
    return model.eval()


@pytest.mark.parametrize("kernels", WORST)
@pytest.mark.parametrize(("shape", "tokens"), [("small", 4), ("small", 16), ("odd", 9)])
def test_vectors_equal_transformers(
    shape: str, tokens: int, kernels: str | None, tmp_path: Path
) -> None:
    model, sizes = random_gemma(SHAPES[shape], tokens), SHAPES[shape]
    model.save_pretrained(tmp_path / "folder")
    made = prepare(tower_of_folder(HuggingFaceFolder.open(tmp_path / "folder")), kernels)
    tower, size = ImageRunner(made.library, made.weights), sizes["image_size"]
    numbers = np.random.default_rng(1).uniform(-1, 1, (3, size, size)).astype(np.float32)
    with torch.no_grad():
        found = model.model.get_image_features(torch.from_numpy(numbers)[None])
    wanted = getattr(found, "pooler_output", found).numpy().reshape(tokens, -1)
    mine = tower.vectors(Numbers(numbers, sizes["patch_size"], tokens))
    error = float(np.abs(mine - wanted).max() / np.abs(wanted).max())
    print(f"{shape}, {tokens} tokens: largest error {error:.1e} of the largest number")
    assert error < WORST[kernels]
    assert tower.vectors(Numbers(numbers, sizes["patch_size"], tokens)) is mine
    assert tower.num_computed == 1
