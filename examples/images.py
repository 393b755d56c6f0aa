"""Images in chats and in prompts. A tiny random model stands for yours: with a Gemma 3 or SmolVLM
file, name the model, and the `mmproj` file lies beside it or is named as `mmproj`."""

import base64
import io
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import ImageData, TextData
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.tiny_eyes import write_tiny_eyes

with tempfile.TemporaryDirectory() as folder:
    files = write_tiny_eyes(Path(folder))
    engine = SyncMLCEngine(str(files.model), engine_config={"mmproj": str(files.mmproj)})

red = np.zeros((48, 64, 3), np.uint8)
red[..., 0] = 255
png = io.BytesIO()
Image.fromarray(red).save(png, "PNG")
url = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
config = GenerationConfig(temperature=0, max_tokens=8)

parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
answer = engine.chat([{"role": "user", "content": parts}], config)
print(f"a chat: {answer.usage.prompt_tokens} prompt tokens, answer {answer.texts[0]!r}")

prompt = [TextData("First "), ImageData(red), TextData(" then "), ImageData(red[:, :, ::-1].copy())]
texts, _ = engine.generate([prompt], config)
print(f"texts and images in any order: {texts[0][0]!r}")
