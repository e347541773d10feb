"""The kernels themselves, in Triton's language: one for the forward pass, one for the backward.

A kernel is written for one *program*. Many run at once, and each asks for its number. Here a
program of the forward pass holds one row: it reads it once, keeps it on the chip, and writes it
once.

RMSNorm is LayerNorm with `CENTERED` false. Values in capitals are known when a kernel is compiled.
Importing this module needs Triton, so nothing but `kernels` imports it, and only when asked.
"""

import triton
import triton.language as tl


@triton.jit
def norm_forward(
    x, weight, bias, y, mean, inverse, width,
    CENTERED: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    EPS: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Normalize one row of x [rows, width]; keep what the backward pass needs: two numbers."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    here = row.to(tl.int64) * width + columns
    value = tl.load(x + here, mask=inside, other=0.0).to(ACC)
    if CENTERED:
        center = tl.sum(value, 0) / width
        value = tl.where(inside, value - center, 0.0)
        tl.store(mean + row, center)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + EPS)
    tl.store(inverse + row, scale)
    value = value * scale
    if HAS_WEIGHT:
        value = value * tl.load(weight + columns, mask=inside, other=0.0).to(ACC)
    if HAS_BIAS:
        value = value + tl.load(bias + columns, mask=inside, other=0.0).to(ACC)
    tl.store(y + here, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def norm_backward(
    grad_y, x, weight, mean, inverse, grad_x, weight_sums, bias_sums, rows, width,
    CENTERED: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Do every P-th row, for P programs; keep this program's sums for weight and bias [P, width].

    The sums of all programs are added up afterwards, always in the same order.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    here = program.to(tl.int64) * width + columns
    step = programs.to(tl.int64) * width
    weight_sum = tl.zeros([BLOCK], dtype=ACC)
    bias_sum = tl.zeros([BLOCK], dtype=ACC)
    for row in range(program, rows, programs):
        value = tl.load(x + here, mask=inside, other=0.0).to(ACC)
        grad = tl.load(grad_y + here, mask=inside, other=0.0).to(ACC)
        scale = tl.load(inverse + row)
        if CENTERED:
            value = value - tl.load(mean + row)
        value = value * scale
        if HAS_BIAS:
            bias_sum += grad
        if HAS_WEIGHT:
            weight_sum += grad * value
            grad = grad * tl.load(weight + columns, mask=inside, other=0.0).to(ACC)
        inner = grad - value * (tl.sum(grad * value, 0) / width)
        if CENTERED:
            inner = inner - tl.sum(grad, 0) / width
        tl.store(grad_x + here, (scale * inner).to(grad_x.dtype.element_ty), mask=inside)
        here += step
    own = program.to(tl.int64) * width + columns
    if HAS_WEIGHT:
        tl.store(weight_sums + own, weight_sum, mask=inside)
    if HAS_BIAS:
        tl.store(bias_sums + own, bias_sum, mask=inside)
