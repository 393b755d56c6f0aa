"""Logits of OpenVINO: `openvino_logits.py MODEL PIECES TARGET THREADS`, in its environment.

Its pipelines give no logits, but they write the model that they make of a GGUF file. That model
runs here by itself, with the settings that its plugin has by default, as in the measurements of
speed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import openvino
import openvino_genai


def converted(model: Path, folder: Path) -> Path:
    """The model that OpenVINO makes of the file, written beside a link to it."""
    link = folder / model.name
    link.symlink_to(model.resolve())
    openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    return folder / "openvino_model.xml"


def logits(request: openvino.InferRequest, ids: np.ndarray) -> np.ndarray:
    """[tokens, vocabulary], of a new sequence."""
    request.reset_state()
    row = ids[np.newaxis].astype(np.int64)
    given = {
        "input_ids": row,
        "attention_mask": np.ones_like(row),
        "position_ids": np.arange(row.size, dtype=np.int64)[np.newaxis],
        "beam_idx": np.zeros(1, np.int32),
    }
    found = request.infer(given)
    return np.array(found["logits"][0], np.float32)


if __name__ == "__main__":
    model, pieces, target, threads = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        core, options = openvino.Core(), {"INFERENCE_NUM_THREADS": int(threads)}
        compiled = core.compile_model(str(converted(Path(model), Path(folder))), "CPU", options)
        request = compiled.create_infer_request()
        np.save(target, np.array([logits(request, piece) for piece in np.load(pieces)]))
