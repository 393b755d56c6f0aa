"""An encoder of BERT's shape in ONNX with 8-bit weights and activations: a peer of `embeddings.py`.

It needs the packages onnx and onnxruntime. The graph has the weights of the GGUF file that the
others run. onnxruntime's own tools fuse its nodes and quantise its matrices (`quantize_dynamic`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.testing.gguf_writer import TensorData

OPSET = 20
"""The first one with GELU."""
BATCH = 32
"""Texts that are computed at once."""
Floats = npt.NDArray[np.float32]


class _Graph:
    """Nodes in order; each has one result."""

    def __init__(self, weights: Mapping[str, Floats], eps: float) -> None:
        import onnx

        self._onnx, self._weights, self._eps = onnx, weights, eps
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def constant(self, name: str, values: npt.NDArray[Any]) -> str:
        made = self._onnx.numpy_helper.from_array(np.ascontiguousarray(values), name)
        self.constants.setdefault(name, made)
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        out = f"n{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [out], **attributes))
        return out

    def linear(self, x: str, name: str) -> str:
        matrix = self.constant(f"{name}.weight", self._weights[f"{name}.weight"].T)
        bias = self.constant(f"{name}.bias", self._weights[f"{name}.bias"])
        return self.node("Add", self.node("MatMul", x, matrix), bias)

    def norm(self, x: str, name: str) -> str:
        ends = [
            self.constant(f"{name}.{end}", self._weights[f"{name}.{end}"])
            for end in ("weight", "bias")
        ]
        return self.node("LayerNormalization", x, *ends, axis=-1, epsilon=self._eps)

    def heads(self, x: str, count: int, order: Sequence[int]) -> str:
        size = self._weights["token_embd.weight"].shape[1] // count
        shape = self.constant("heads", np.array([0, 0, count, size], np.int64))
        return self.node("Transpose", self.node("Reshape", x, shape), perm=list(order))


def write_graph(
    path: Path, tensors: Mapping[str, TensorData], layers: int, heads: int, eps: float
) -> None:
    """ids int64 [texts, tokens] -> the mean vector of each text."""
    import onnx

    weights: dict[str, Floats] = {
        name: dequantize(one.kind, np.frombuffer(one.data, np.uint8), one.shape)
        for name, one in tensors.items()
    }
    graph, hidden = _Graph(weights, eps), weights["token_embd.weight"].shape[1]
    table = graph.constant("token_embd", weights["token_embd.weight"])
    x = graph.node("Gather", table, "ids")
    first = graph.constant("type", weights["token_types.weight"][:1])
    positions = graph.constant("positions", weights["position_embd.weight"])
    length = graph.node("Shape", "ids", start=1, end=2)
    start, axis = (graph.constant(f"c{i}", np.array([i], np.int64)) for i in (0, 0))
    places = graph.node("Slice", positions, start, length, axis)
    x = graph.norm(graph.node("Add", graph.node("Add", x, places), first), "token_embd_norm")
    joined = graph.constant("joined", np.array([0, 0, hidden], np.int64))
    scale = graph.constant("scale", np.array((hidden // heads) ** 0.5, np.float32))
    for i in range(layers):
        name = f"blk.{i}."
        q = graph.heads(graph.linear(x, f"{name}attn_q"), heads, (0, 2, 1, 3))
        k = graph.heads(graph.linear(x, f"{name}attn_k"), heads, (0, 2, 3, 1))
        v = graph.heads(graph.linear(x, f"{name}attn_v"), heads, (0, 2, 1, 3))
        scores = graph.node("Softmax", graph.node("Div", graph.node("MatMul", q, k), scale))
        seen = graph.node("Transpose", graph.node("MatMul", scores, v), perm=[0, 2, 1, 3])
        out = graph.linear(graph.node("Reshape", seen, joined), f"{name}attn_output")
        x = graph.norm(graph.node("Add", out, x), f"{name}attn_output_norm")
        inner = graph.node("Gelu", graph.linear(x, f"{name}ffn_up"))
        down = graph.linear(inner, f"{name}ffn_down")
        x = graph.norm(graph.node("Add", down, x), f"{name}layer_output_norm")
    mean = graph.node("ReduceMean", x, graph.constant("c1", np.array([1], np.int64)), keepdims=0)
    made = onnx.helper.make_graph(
        graph.nodes, "encoder",
        [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["texts", "tokens"])],
        [onnx.helper.make_tensor_value_info(mean, onnx.TensorProto.FLOAT, ["texts", hidden])],
        list(graph.constants.values()),
    )  # fmt: skip
    opset = [onnx.helper.make_opsetid("", OPSET)]
    onnx.save(onnx.helper.make_model(made, opset_imports=opset, ir_version=10), str(path))


class OnnxEncoder:
    """The quantised graph, ready."""

    def __init__(self, folder: Path, graph: Path, threads: int) -> None:
        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic

        path = folder / "quantized.onnx"
        quantize_dynamic(str(graph), str(path), weight_type=QuantType.QInt8, per_channel=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def vectors(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Of length 1. All texts have one length."""
        ids, found = np.array(texts, np.int64), []
        for i in range(0, len(ids), BATCH):
            found += list(self._session.run(None, {"ids": ids[i : i + BATCH]})[0])
        made: Floats = np.array(found, np.float32)
        unit: Floats = made / np.linalg.norm(made, axis=1, keepdims=True)
        return unit
