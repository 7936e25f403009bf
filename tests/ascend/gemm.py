"""SmoothGEMM problems for the emulation: inputs with poisoned padding, and fp64 references."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

FORMS = ("f16", "bf16", "int8_static", "int8_f16", "int8_bf16")
GUARD = 64  # elements behind each row of the output that nothing may write
_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
_BLOCK_BYTES = 32


@dataclass(frozen=True, slots=True)
class Problem:
    """One SmoothGEMM call.

    `rows` has one entry without groups, else one per expert. `pad` widens the rows of x, weight and
    out; what lies there is NaN (16-bit) or was never written (int8). `tuning` is m_tile, n_tile,
    k_tile, swizzle direction and count, last_split; zeros leave the choice to the rule. The last
    group's end lies `overshoot` rows beyond x.
    """

    form: str
    rows: tuple[int, ...]
    n: int
    k: int
    nz: bool = False
    bias: bool = False
    row_scales: bool = True
    pad: int = 0
    overshoot: int = 0
    cores: int = 2
    tuning: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)
    seed: int = 0

    @property
    def m(self) -> int:
        return sum(self.rows)

    @property
    def int8(self) -> bool:
        return self.form.startswith("int8")

    @property
    def mixed(self) -> bool:
        return self.form in ("int8_f16", "int8_bf16")

    @property
    def c0(self) -> int:
        return _BLOCK_BYTES if self.int8 else _BLOCK_BYTES // 2

    @property
    def out_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.form.endswith("bf16") else torch.float16


@dataclass(slots=True)
class Tensors:
    """Memory of a call in the order of tests/ascend/kernels.cc, and the expected result."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    scales: torch.Tensor | None
    row_scales: torch.Tensor | None
    out: torch.Tensor
    group_ends: torch.Tensor | None
    expected: torch.Tensor
    numbers: list[int] = field(default_factory=list)


def _random(shape: tuple[int, ...], problem: Problem, generator: torch.Generator) -> torch.Tensor:
    if problem.int8:
        return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
    return torch.randn(shape, generator=generator).to(_DTYPES[problem.form])


def _poison(tensor: torch.Tensor) -> torch.Tensor:
    """NaN where the type has one; else the largest value, which no result could hide."""
    return tensor.fill_(float("nan") if tensor.is_floating_point() else 127)


def to_nz(weight: torch.Tensor, c0: int) -> torch.Tensor:
    """[n, k] as the fractal layout [k / C0, n / 16, 16, C0], padding poisoned."""
    n, k = weight.shape
    rows, columns = -(-n // 16) * 16, -(-k // c0) * c0
    padded = _poison(weight.new_empty(rows, columns))
    padded[:n, :k] = weight
    return padded.reshape(rows, columns // c0, c0).permute(1, 0, 2).contiguous()


def _padded(values: torch.Tensor, pad: int) -> torch.Tensor:
    rows, columns = values.shape
    wide = _poison(values.new_empty(rows, columns + pad))
    wide[:, :columns] = values
    return wide


def make(problem: Problem, word_of: object = None) -> Tensors:
    """Fresh inputs of a problem. `word_of` turns an fp32 scale into the Fixpipe's word."""
    g = torch.Generator().manual_seed(problem.seed)
    groups, m, n, k = len(problem.rows), problem.m, problem.n, problem.k
    x = _random((m, k), problem, g)
    weight = _random((groups, n, k), problem, g)
    if not problem.int8:
        weight = (weight.float() / k**0.5).to(weight.dtype)
    bias = scales = row_scales = None
    factor = torch.ones(groups, n, dtype=torch.float64)
    if problem.int8:
        scale = (torch.rand(groups, n, generator=g) + 0.5) / (5000.0 * k**0.5)
        if problem.form == "int8_static":
            words = [word_of(float(v)) for v in scale.flatten()]  # type: ignore[operator]
            scales = torch.tensor(words, dtype=torch.int64).reshape(groups, n)
            factor = scales.to(torch.int32).view(torch.float32).double()
        else:
            scales, factor = scale, scale.double()
            if problem.row_scales:
                row_scales = torch.rand(m, generator=g) + 0.5
    if problem.bias:
        if problem.form == "int8_static":
            bias = torch.randint(-2000, 2000, (groups, n), generator=g, dtype=torch.int32)
        else:
            bias = torch.randn(groups, n, generator=g)
    t = Tensors(
        x=_padded(x, problem.pad),
        weight=_stored(weight, problem),
        bias=bias,
        scales=scales,
        row_scales=row_scales,
        out=torch.full((m, n + problem.pad + GUARD), 7.0, dtype=problem.out_dtype),
        group_ends=_group_ends(problem),
        expected=_reference(problem, x, weight, bias, factor, row_scales),
    )
    t.numbers = _numbers(problem, t)
    return t


def _group_ends(problem: Problem) -> torch.Tensor | None:
    if len(problem.rows) == 1:
        return None
    ends = torch.tensor(problem.rows).cumsum(0)
    ends[-1] += problem.overshoot
    return ends


def _stored(weight: torch.Tensor, problem: Problem) -> torch.Tensor:
    if problem.nz:
        return torch.stack([to_nz(w, problem.c0) for w in weight])
    return torch.stack([_padded(w, problem.pad) for w in weight])


def _reference(
    problem: Problem,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    factor: torch.Tensor,
    row_scales: torch.Tensor | None,
) -> torch.Tensor:
    parts, begin = [], 0
    for group, rows in enumerate(problem.rows):
        acc = x[begin : begin + rows].double() @ weight[group].double().T
        if bias is not None and problem.form == "int8_static":
            acc += bias[group].double()
        acc *= factor[group]
        if row_scales is not None:
            acc *= row_scales[begin : begin + rows, None].double()
        if bias is not None and problem.form != "int8_static":
            acc += bias[group].double()
        parts.append(acc)
        begin += rows
    return torch.cat(parts)


def _numbers(problem: Problem, t: Tensors) -> list[int]:
    """The integer arguments, in the order of gemm_call in kernels.cc."""
    weight_row = 0 if problem.nz else t.weight.stride(1)
    return [
        FORMS.index(problem.form),
        int(problem.nz),
        problem.m,
        problem.n,
        problem.k,
        len(problem.rows),
        problem.k + problem.pad,
        weight_row,
        t.weight.stride(0),
        problem.n + problem.pad + GUARD,
        *problem.tuning,
        problem.cores,
    ]


def assert_guard(problem: Problem, t: Tensors) -> None:
    """Require that nothing behind the rows of the output was written."""
    assert bool((t.out[:, problem.n :] == 7.0).all()), "the kernel wrote behind the output's rows"
