"""Products of the rows of each expert with its own matrix; only matrices that have rows are read.

    jobs = experts with rows, and their rows
    for job, block in jobs and column blocks of its matrix:     parallel; threads claim tasks
      Y[rows of the job, block] = X[rows of the job] * W[expert of the job, block]

starts  int32 [experts + 1]        rows starts[e] to starts[e + 1] are those of expert e
X       [rows, ...]                activations, sorted by expert, as `matmul.py` describes them
W       [experts, ...]             the packed matrix of each expert
Y       float32 [rows, width]      the result, in the columns from `first` on
jobs    int32 [experts + 1, 3]     EXPERT, START and ROWS of a job

What is done with a job is what `matmul.py` does with a matrix. Fixed-point weights go through AMX
tiles where an expert has enough rows of them, else through vectors: the bits are the same. So a
row's result depends neither on the other rows nor on how many there are.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.amx import ROWS as TILE_ROWS
from mlc_llm.kernels.cpu.amx_blocking import Place
from mlc_llm.kernels.cpu.amx_exact import ExactProduct
from mlc_llm.kernels.cpu.amx_pipeline import Chunk, Pipeline
from mlc_llm.kernels.cpu.claims import CLAIMED, SEEN, STATE, can_claim, claim, clear_claims
from mlc_llm.kernels.cpu.fixed_point import least_gemm_rows
from mlc_llm.kernels.cpu.fixed_point_gemv import FixedPointGemv
from mlc_llm.kernels.cpu.float_matmul import DequantisedProduct, FloatProduct
from mlc_llm.kernels.cpu.integer_product import IntegerProduct
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.quant_blocks import row_width
from mlc_llm.kernels.cpu.quantized_rows import quantized_width
from mlc_llm.kernels.cpu.vectors import SCHEDULED
from mlc_llm.kernels.types import Buffer, Index
from mlc_llm.record import record

EXPERT, START, ROWS = range(3)
"""Words of a job."""
JOB = 3


@record()
class ExpertShape:
    """Matrices [n, k] of so many experts; n is a multiple of 32."""

    experts: int
    n: int
    k: int
    fmt: WeightFormat

    @property
    def blocks(self) -> int:
        """Column blocks of a matrix."""
        return self.n // BLOCK


@cache
def expert_matmul(
    shape: ExpertShape, isa: Isa, width: int = 0, first: int = 0
) -> tvm.tirx.PrimFunc:
    """Kernel of (starts, X, W, Y). width: columns of Y, if they are not n; first: the first one
    that is written."""
    product = ExpertProducts(shape, isa, width or shape.n, first)
    matrix, dtype = tensor_shape(shape.fmt, shape.n, shape.k)
    all_blocks = (shape.experts * shape.blocks, *matrix[1:])

    @T.prim_func(private=True, s_tir=True)
    def expert_products(
        starts: T.Buffer((shape.experts + 1,), "int32"),
        x: T.handle,
        w: T.Buffer((shape.experts, *matrix), dtype),
        y: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, product.x_shape(m), product.x_dtype)
        Y = T.match_buffer(y, (m, product.width), "float32")
        with T.sblock("root"):
            W = T.decl_buffer(all_blocks, dtype, data=w.data, elem_offset=0)
            jobs = T.alloc_buffer((shape.experts + 1, JOB), "int32")
            claims = T.alloc_buffer((shape.experts * shape.blocks + 1,), "int32")
            product.multiply(starts, X, W, Y, jobs, claims, m)

    return expert_products


class JobWork(NamedTuple):
    """Tasks of a `Pipeline`: the column blocks of each job, one job behind the other."""

    jobs: Buffer
    number: Index
    pipeline: Pipeline
    shape: ExpertShape
    first: int
    m: Index

    @property
    def tasks(self) -> Index:
        return self.number * self.pipeline.tasks

    def chunk(self, task: Index) -> Chunk:
        """All rows of the job."""
        job = task // self.pipeline.tasks
        start, rows = self.jobs[job, START], self.jobs[job, ROWS]
        return Chunk(self.m, start, start + rows, T.ceildiv(rows, self.pipeline.blocking.rows))

    def place(self, task: Index, weight_block: Index) -> Place:
        """W has the matrices of all experts, Y the columns of one."""
        tasks = self.pipeline.tasks
        place = self.pipeline.blocking.place(task % tasks, weight_block)
        block = self.jobs[task // tasks, EXPERT] * self.shape.blocks + place.block
        return place._replace(block=block, column=place.column + self.first)


class ExpertProducts:
    """Statements of a product; `width` and `first` as in `expert_matmul`."""

    def __init__(self, shape: ExpertShape, isa: Isa, width: int, first: int) -> None:
        self.shape, self.isa, self.width, self.first = shape, isa, width, first
        n, k, fmt = shape.n, shape.k, shape.fmt
        self.vectors = _on_vectors(n, k, fmt, isa)
        self.tiles = Pipeline(n, ExactProduct(k, fmt, False)) if fmt.is_fixed_point else None
        self.least = least_gemm_rows(shape.experts * n, k)
        self.inner, self.x_dtype = _row_of_x(k, fmt, isa)
        self.matrix, self.w_dtype = tensor_shape(fmt, n, k)
        self.x_size, self.w_size = math.prod(self.inner), math.prod(self.matrix)

    def x_shape(self, m: Index) -> tuple[Index, ...]:
        """The shape of m rows of X."""
        return (m, *self.inner)

    @T.inline
    def multiply(self, starts, X, W, Y, jobs, claims, m):
        """All m rows."""
        if self.tiles is None:
            self.on_vectors(starts, X, W, Y, jobs, claims, m, m)
        else:
            least = T.meta_var(T.if_then_else(m < TILE_ROWS, m, self.least - 1))
            self.on_vectors(starts, X, W, Y, jobs, claims, m, least)
            self.on_tiles(self.tiles, starts, X, W, Y, jobs, claims, m, least)

    @T.inline
    def list_jobs(self, starts, jobs, count, low, high, done, most):
        """Lists the experts that have more than `low` rows and at most `high`, each with its rows
        behind the first `done`, but at most `most` of these. count[0]: how many they are."""
        count[0] = 0
        for e in T.serial(self.shape.experts):
            if T.And(
                starts[e + 1] - starts[e] > T.max(low, done), starts[e + 1] - starts[e] <= high
            ):
                jobs[count[0], EXPERT] = e
                jobs[count[0], START] = starts[e] + done
                jobs[count[0], ROWS] = T.min(starts[e + 1] - starts[e] - done, most)
                count[0] = count[0] + 1

    @T.inline
    def on_vectors(self, starts, X, W, Y, jobs, claims, m, most):
        """The experts with at most `most` rows."""
        count = T.alloc_buffer((1,), "int32")
        self.list_jobs(starts, jobs, count, 0, most, 0, m)
        if can_claim(self.isa):
            clear_claims(claims, count[0] * self.vectors.apart)
            for start in T.parallel(count[0] * self.vectors.apart):
                align_stack()
                if claims[count[0] * self.vectors.apart] == 0:
                    state = T.alloc_buffer((STATE,), "int32")
                    state[SEEN] = 0
                    claim(claims, state, start, count[0] * self.vectors.apart)
                    while state[CLAIMED] < count[0] * self.vectors.apart:
                        self.multiply_task(
                            X, W, Y, jobs,
                            state[CLAIMED] // self.vectors.apart,
                            state[CLAIMED] % self.vectors.apart,
                        )  # fmt: skip
                        claim(claims, state, start, count[0] * self.vectors.apart)
                    claims[count[0] * self.vectors.apart] = 1
        else:
            for task in T.parallel(count[0] * self.vectors.apart):
                align_stack()
                self.multiply_task(X, W, Y, jobs, task % count[0], task // count[0])

    @T.inline
    def multiply_task(self, X, W, Y, jobs, job, block):
        """The rows of a job times one column block of its matrix, or one of each stream. To the
        product, the job is all there is."""
        column: T.let[T.int32] = block
        expert: T.let[T.int32] = jobs[job, EXPERT]
        start: T.let[T.int32] = jobs[job, START]
        rows: T.let[T.int32] = jobs[job, ROWS]
        X_job = T.decl_buffer(
            self.x_shape(rows), self.x_dtype, data=X.data, elem_offset=start * self.x_size
        )
        W_job = T.decl_buffer(
            self.matrix, self.w_dtype, data=W.data, elem_offset=expert * self.w_size
        )
        Y_job = T.decl_buffer(
            (rows, self.width), "float32", data=Y.data,
            elem_offset=start * self.width + self.first,
        )  # fmt: skip
        self.vectors.multiply(X_job, W_job, Y_job, column, rows)

    @T.inline
    def on_tiles(self, tiles, starts, X, W, Y, jobs, claims, m, least):
        """The experts with more than `least` rows: in each turn as many of each as a chunk has."""
        count = T.alloc_buffer((1,), "int32")
        rows = T.meta_var(tiles.blocking.row_blocks * TILE_ROWS)
        for turn in T.serial(T.ceildiv(m, rows)):
            self.list_jobs(starts, jobs, count, least, m, turn * rows, rows)
            if count[0] > 0:
                tiles.do_all(
                    X, W, Y, claims,
                    JobWork(jobs, count[0], tiles, self.shape, self.first, m), m,
                )  # fmt: skip


def _on_vectors(
    n: int, k: int, fmt: WeightFormat, isa: Isa
) -> FixedPointGemv | IntegerProduct | DequantisedProduct | FloatProduct:
    """The product of a few rows."""
    if fmt.is_float:
        return FloatProduct(n, k, fmt, isa, False)
    if fmt.is_fixed_point:
        return FixedPointGemv(n, k, fmt, isa, False)
    is_integer = isa.integer and not fmt.reads_floats
    return (IntegerProduct if is_integer else DequantisedProduct)(n, k, fmt, isa, False)


def _row_of_x(k: int, fmt: WeightFormat, isa: Isa) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a row of X."""
    if fmt.reads_floats or not isa.integer:
        return (k,), "float32"
    if fmt.is_fixed_point:
        return (row_width(k),), "int32"
    return (k // fmt.group, quantized_width(fmt.group)), "int32"
