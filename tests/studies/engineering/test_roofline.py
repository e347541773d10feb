"""Operations are counted as by hand, clocks rank what differs tenfold, and compiling may fail."""

import pytest
import torch

from normbook.lab import dispatch
from normbook.studies.engineering import roofline

ROWS, WIDTH = 16, 32


X = torch.randn(ROWS, WIDTH, dtype=torch.float64)


def count(call, bytes_each=8):
    return roofline.operations(dispatch.record(call), bytes_each)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: (X + 1) * X, 2 * ROWS * WIDTH),  # elementwise: what is written
        (lambda: X.mean(-1), ROWS * WIDTH),  # a reduction: what is read
        (lambda: torch.rsqrt(X[:, :1]), ROWS),
        (lambda: torch.addcmul(X, X, X), 2 * ROWS * WIDTH),
        (lambda: X.clone(), 0),
    ],
)
def test_operations_are_counted_as_by_hand(call, expected):
    assert count(call) == expected


def test_single_precision_has_four_bytes():
    single = X.float()
    assert count(lambda: single * single, bytes_each=4) == ROWS * WIDTH


def test_the_first_two_calls_do_not_count(monkeypatch):
    now, costs = [0.0], iter([0.5, 0.5, 3.0, 1.0, 2.0])
    monkeypatch.setattr(roofline.time, "perf_counter", lambda: now[0])

    def slow():
        now[0] += next(costs)

    found = roofline.fastest({"slow": slow, "fast": lambda: None}, repeats=3)
    assert found == {"slow": 1.0, "fast": 0.0}


def test_refusals():
    with pytest.raises(ValueError, match="'mm'"):
        count(lambda: X @ X.T)
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        roofline.fastest({}, repeats=0)


def test_memory_is_kept_where_the_library_can(monkeypatch):
    asked = []

    class Library:
        def mallopt(self, *option):
            asked.append(option)
            return 1

    monkeypatch.setattr(roofline.ctypes, "CDLL", lambda _: Library())
    assert roofline.keep_memory()
    assert asked == [(-4, 0), (-1, 2**31 - 1)]
    monkeypatch.setattr(roofline.ctypes, "CDLL", lambda _: object())
    assert not roofline.keep_memory()


def test_the_machine_computes_and_copies():
    peak, bandwidth = roofline.machine(side=64, numbers=2**12)
    assert peak > 1e6
    assert bandwidth > 1e6


def test_a_failure_to_compile_is_one_line(monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("no compiler\nanywhere")

    monkeypatch.setattr(torch, "compile", fail)
    assert roofline.compiled(torch.sin, X) == (None, 0)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "C++ compiler" in said


def test_kernels_are_counted_in_the_generated_code():
    code = "\ncpp_fused_mul_0 = async_compile.cpp_pybinding(\ntriton_fused_x = 1\n"
    assert len(roofline.KERNEL.findall(code)) == 1
    code += "\ntriton_per_fused_a_1 = async_compile.triton("
    assert len(roofline.KERNEL.findall(code)) == 2
