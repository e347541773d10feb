"""The sanity check passes, can fail in each of its six checks, and is the same on every machine."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from helpers import ROOT
from torch import nn

import normalization as nz
from normbook.engine import batch_norms, layer_norms, residuals, sanity

DOOR = ROOT / "code" / "normalization.py"
THREE = (0, 1, 2)
ONE = (0,)


@pytest.fixture(scope="module")
def results():
    return nz.sanity_check()


def test_six_checks_pass_over_ten_seeds(results):
    assert [result.label for result in results] == list("abcdef")
    for result in results:
        assert result.passed, result.line
        assert result.line.startswith(f"[{result.label}] ")
        assert "\n" not in result.line
        assert result.numbers
        assert {len(values) for values in result.numbers.values()} == {10}


def test_identities_show_a_bound_and_no_residue(results):
    for label, count in (("a", 2), ("b", 2), ("c", 2)):
        line = results["abcdef".index(label)].line.split("(published")[0]
        assert line.count("< 1e-12") == count
        assert "e-1" not in line.replace("< 1e-12", "")


def test_lines_show_median_and_range(results):
    numbers = results[4].numbers["Kaiming"]
    middle = sorted(numbers)
    median = (middle[4] + middle[5]) / 2
    shown = [f"{value:#.3g}".rstrip(".") for value in (median, middle[0], middle[-1])]
    assert f"Kaiming {shown[0]} [{shown[1]}, {shown[2]}]" in results[4].line


def test_gradient_ratio_is_told_as_depending_on_loss_and_branch(results):
    numbers = {key: sorted(values)[5] for key, values in results[3].numbers.items()}
    assert len(numbers) == 8
    assert all(value < 1 for key, value in numbers.items() if key.startswith("Pre-LN"))
    assert numbers["Post-LN, linear, mean square"] > 1 > numbers["Post-LN, ReLU, mean square"]


# --- against a second program: one network at a time, of PyTorch's own parts ---


def generator(seed):
    return torch.Generator().manual_seed(seed)


def default_linear(draw, dim):
    """Draw as `nn.Linear` does, in the order weight, bias."""
    weight = nn.init.kaiming_uniform_(torch.empty(dim, dim).double(), a=5**0.5, generator=draw)
    limit = dim**-0.5
    return weight, torch.empty(1, dim).double().uniform_(-limit, limit, generator=draw)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_gradient_ratio_is_that_of_a_network_written_out(placement):
    seeds, depth, dim = (3, 4), 5, 8
    actual = nz.last_over_first(seeds, placement, "linear", ["mean square"], depth, dim)
    for seed, ratio in zip(seeds, actual["mean square"], strict=True):
        draw = generator(seed)
        layers = [default_linear(draw, dim) for _ in range(depth)]
        head = default_linear(draw, dim)
        x = torch.empty(16, dim).double().normal_(generator=draw)
        for weight, bias in layers:
            weight.requires_grad_()
            if placement == "pre":
                x = x + F.linear(F.layer_norm(x, (dim,)), weight, bias[0])
            else:
                x = F.layer_norm(x + F.linear(x, weight, bias[0]), (dim,))
        F.linear(x, head[0], head[1][0]).square().mean().backward()
        expected = layers[-1][0].grad.norm() / layers[0][0].grad.norm()
        assert ratio == pytest.approx(expected.item(), rel=1e-12)


def test_what_a_shift_moves_is_that_of_torch(results):
    for seed, moved in enumerate(results[1].numbers["RMSNorm moves"]):
        x = torch.empty(8, 64).double().normal_(generator=generator(seed))
        expected = F.rms_norm(x + 5, (64,)) - F.rms_norm(x, (64,))
        assert moved == pytest.approx(expected.abs().max().item(), rel=1e-12)


def test_training_against_evaluation_is_that_of_torch(results):
    for seed, differ in enumerate(results[2].numbers["training - evaluation"]):
        x = 3 * torch.empty(8, 64).double().normal_(generator=generator(seed)) + 7
        peer = nn.BatchNorm1d(64, dtype=torch.float64)
        expected = peer(x) - peer.eval()(x)
        assert differ == pytest.approx(expected.abs().max().item(), rel=1e-12)


def test_growth_is_over_the_stream_before_the_first_write():
    growth = nz.stream_growth((0, 1), 3, 1.0, dim=8)
    assert growth[0] == [1.0, 1.0]
    draw = generator(1)
    x = torch.empty(32, 8).double().normal_(generator=draw)
    start = x.square().mean()
    for step in range(1, 4):
        weight = nn.init.xavier_normal_(torch.empty(8, 8).double(), generator=draw)
        x = x + F.linear(F.layer_norm(x, (8,)), weight)
        assert growth[step][1] == pytest.approx((x.square().mean() / start).item(), rel=1e-12)


def test_one_write_and_two_writes_a_layer(results):
    numbers = {key: sorted(values)[5] for key, values in results[5].numbers.items()}
    assert numbers["one write, unscaled"] == pytest.approx(51, rel=0.05)
    assert numbers["one write, scaled"] == pytest.approx(1.5, rel=0.05)
    assert numbers["two writes, unscaled"] == pytest.approx(101, rel=0.05)
    assert numbers["two writes, scaled"] == pytest.approx(2, rel=0.05)


def test_lines_are_the_same_with_one_and_two_threads_and_leave_the_generator_alone():
    before = torch.get_num_threads(), torch.get_rng_state()
    lines = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        lines.append([result.line for result in nz.sanity_check(ONE)])
    torch.set_num_threads(before[0])
    assert lines[0] == lines[1]
    assert torch.equal(torch.get_rng_state(), before[1])


def swapped(branch, norm=None, placement="pre", **options):
    other = {"pre": "post", "post": "pre"}[placement]
    return residuals.Residual(branch, norm, other, **options)


def unscaled(branch, norm, placement, scale=1.0):
    return residuals.Residual(branch, norm, placement)


def never_moving(num_features):
    return batch_norms.BatchNorm(num_features, momentum=0.0)


BREAKAGES = [
    ("a", "LayerNorm", lambda shape: layer_norms.LayerNorm(shape, eps=1e-4)),
    ("b", "RMSNorm", lambda shape, eps: layer_norms.RMSNorm(shape, eps=2 * eps)),
    ("b", "rms_norm", layer_norms.layer_norm),
    ("b", "layer_norm", layer_norms.rms_norm),
    ("c", "BatchNorm", never_moving),
    ("d", "Residual", swapped),
    (
        "e",
        "kaiming_normal_",
        lambda x, nonlinearity, generator: x.normal_(0, 0.03, generator=generator),
    ),
    ("e", "xavier_normal_", sanity.kaiming_normal_),
    ("f", "Residual", unscaled),
    ("f", "xavier_normal_", lambda x, generator: nz.xavier_normal_(x, 0.9, generator)),
]


@pytest.mark.parametrize(("label", "name", "broken"), BREAKAGES)
def test_each_check_fails_on_a_broken_engine(label, name, broken, monkeypatch):
    monkeypatch.setattr(sanity, name, broken)
    assert not nz.CHECKS[label](THREE).passed


def test_a_failed_check_is_named_and_sets_the_exit_status(monkeypatch, capsys):
    def broken(seeds):
        raise RuntimeError("out of order")

    failing = nz.Check("b", "[b] something is off", False)
    passing = nz.Check("a", "[a] fine", True)
    checks = {"a": lambda seeds: passing, "b": lambda seeds: failing, "c": broken}
    monkeypatch.setattr(sanity, "CHECKS", checks)
    assert sanity.main() == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "[a] fine  OK"
    assert lines[1] == "[b] something is off  FAILED"
    assert lines[2] == "[c] raised RuntimeError: out of order  FAILED"
    assert printed.err == "failed: [b], [c]\n"


def test_six_passed_checks_give_exit_status_0(monkeypatch, capsys):
    monkeypatch.setattr(sanity, "CHECKS", {"a": lambda seeds: nz.Check("a", "[a] fine", True)})
    assert sanity.main() == 0
    assert capsys.readouterr().err == ""


def test_no_seed_is_refused():
    with pytest.raises(ValueError, match="seeds must hold at least one seed"):
        nz.sanity_check([])


def test_the_program_prints_six_lines_and_a_verdict():
    done = subprocess.run([sys.executable, DOOR], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[:4] for line in lines[:6]] == [f"[{label}] " for label in "abcdef"]
    assert all(line.endswith("  OK") for line in lines[:6])
    assert lines[6:] == ["all 6 sanity checks passed (float64, 10 seeds, median [min, max])"]
