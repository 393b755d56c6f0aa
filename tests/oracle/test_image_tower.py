"""The tower of Gemma 3 with random weights, compiled from a folder, against Transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

import tvm  # noqa: E402
from tvm.relax.frontend import nn  # noqa: E402

from mlc_llm.backends.registry import backend_of  # noqa: E402
from mlc_llm.images.pixels import patches  # noqa: E402
from mlc_llm.loader.huggingface import HuggingFaceFolder  # noqa: E402
from mlc_llm.model_files.folder_tensors import named_tensors  # noqa: E402
from mlc_llm.models.siglip import IMAGE_EMBED, SiglipTower, parameter_of  # noqa: E402
from mlc_llm.models.vision_spec import HF_NAMES, VisionSpec, read_vision  # noqa: E402
from mlc_llm.quantization.ggml_blocks import dequantize  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
SHAPES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
              "num_attention_heads": 4, "image_size": 56, "patch_size": 14},
    "odd": {"hidden_size": 72, "intermediate_size": 100, "num_hidden_layers": 2,
            "num_attention_heads": 1, "image_size": 99, "patch_size": 8, "hidden_act": "gelu"},
}  # fmt: skip


def random_gemma(vision: dict[str, Any], tokens: int) -> Any:
    text = {
        "vocab_size": 300, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
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


def compiled(spec: VisionSpec, folder: Path, given: dict[str, Any]) -> Any:
    shapes = {"patches": nn.spec.Tensor([spec.side**2, spec.patch_numbers], "float32")}
    shapes["$"] = {"param_mode": "packed", "effect_mode": "none"}
    module, params = SiglipTower(spec).export_tvm({IMAGE_EMBED: shapes})
    backend = backend_of("reference")
    files = backend.compile(module, folder).files
    function = backend.device.link(folder, files, ())[IMAGE_EMBED]
    by_name = {parameter_of(name): values for name, values in given.items()}
    packed = [tvm.runtime.tensor(by_name[name]) for name, _ in params]
    return lambda numbers: function(tvm.runtime.tensor(numbers), packed).numpy()


@pytest.mark.parametrize(("shape", "tokens"), [("small", 4), ("small", 16), ("odd", 9)])
def test_vectors_equal_transformers(shape: str, tokens: int, tmp_path: Path) -> None:
    model = random_gemma(SHAPES[shape], tokens)
    model.save_pretrained(tmp_path / "folder")
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    spec = read_vision(config)
    tensors = named_tensors(
        spec.tensors, HF_NAMES, HuggingFaceFolder.open(tmp_path / "folder").tensors
    )
    weights = {name: dequantize(one.kind, one.data, one.shape) for name, one in tensors.items()}
    size = config["vision_config"]["image_size"]
    numbers = np.random.default_rng(1).uniform(-1, 1, (3, size, size)).astype(np.float32)
    with torch.no_grad():
        found = model.model.get_image_features(torch.from_numpy(numbers)[None])
    wanted = getattr(found, "pooler_output", found).numpy().reshape(spec.tokens, spec.width)
    used = numbers[:, : spec.side * spec.patch, : spec.side * spec.patch]
    mine = compiled(spec, tmp_path, weights)(patches(used, spec.patch))
    error = float(np.abs(mine - wanted).max() / np.abs(wanted).max())
    print(f"{shape}, {tokens} tokens: largest error {error:.1e} of the largest number")
    assert error < 1e-5
