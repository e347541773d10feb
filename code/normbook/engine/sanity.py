"""The six checks of section A, over several seeds and in float64.

Each check draws from its own generators on the CPU, one per seed, and returns a `Check`: a line to
read, and the numbers behind it to plot. What is an identity is reported as a bound; what varies as
the median over seeds and its range. The values the book started from, one float32 draw each, are
quoted as published.
"""

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from normbook.engine.batch_norms import BatchNorm
from normbook.engine.initialization import kaiming_normal_, kaiming_uniform_, xavier_normal_
from normbook.engine.layer_norms import LayerNorm, RMSNorm, layer_norm, rms_norm
from normbook.engine.residuals import Residual

SEEDS = tuple(range(10))
EXACT = 1e-12  # an identity in float64 holds to better than this


@dataclass(frozen=True)
class Check:
    """What one check found: its letter, a line to read, whether it passed, its numbers by seed."""

    label: str
    line: str
    passed: bool
    numbers: dict[str, list[float]] = field(default_factory=dict)


def spread(values: Sequence[float]) -> str:
    """Write median and range, "1.91 [1.30, 3.70]", to 3 significant digits."""
    shown = (statistics.median(values), min(values), max(values))
    median, low, high = (f"{value:#.3g}".rstrip(".") for value in shown)
    return f"{median} [{low}, {high}]"


def bound(values: Sequence[float]) -> str:
    """Write that every value is below the bound of an identity, or the largest if one is not."""
    return f"< {EXACT:g}" if _exact(values) else f"{max(values):.1e}, not < {EXACT:g}"


def _exact(values: Sequence[float]) -> bool:
    """Tell whether every value is below the bound of an identity (nan is not)."""
    return all(value < EXACT for value in values)


def _generator(seed: int) -> Generator:
    """Start a generator on the CPU, whose float64 draws are the same on every machine."""
    return torch.Generator().manual_seed(seed)


def _draw(generators: Sequence[Generator], *shape: int, fill: Callable = nn.init.normal_) -> Tensor:
    """Fill one float64 tensor per generator and stack them: seeds along the first axis."""
    draws = [fill(torch.empty(shape, dtype=torch.float64), generator=g) for g in generators]
    return torch.stack(draws)


def _difference(first: Tensor, second: Tensor) -> float:
    """Return the largest absolute difference of two tensors."""
    return (first - second).abs().max().item()


# --- [a] to [c]: the layers ---


def check_a(seeds: Sequence[int] = SEEDS) -> Check:
    """Compare LayerNorm with `nn.LayerNorm`: output and gradients, at random gain and bias."""
    numbers: dict[str, list[float]] = {"output": [], "gradients": []}
    for seed in seeds:
        input, gain, bias = _draw([_generator(seed)], 10, 64)[0].split([8, 1, 1])
        peer, mine = nn.LayerNorm(64, dtype=torch.float64), LayerNorm(64).double()
        for layer in (peer, mine):
            layer.load_state_dict({"weight": gain[0], "bias": bias[0]})
        output, gradients = _value_and_gradients(mine, input)
        peer_output, peer_gradients = _value_and_gradients(peer, input)
        numbers["output"].append(_difference(output, peer_output))
        numbers["gradients"].append(max(map(_difference, gradients, peer_gradients)))
    line = (
        f"[a] LayerNorm against nn.LayerNorm: output differs by {bound(numbers['output'])}, "
        f"gradients by {bound(numbers['gradients'])} "
        "(published single-seed value, float32: 2.38e-07)"
    )
    return Check("a", line, all(map(_exact, numbers.values())), numbers)


def _value_and_gradients(layer: nn.Module, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the output, and the gradients of a curved function of it by input and parameters."""
    leaf = input.clone().requires_grad_()
    output = layer(leaf)
    return output, torch.autograd.grad(output.sin().sum(), (leaf, *layer.parameters()))


def check_b(seeds: Sequence[int] = SEEDS, shift: float = 5.0) -> Check:
    """Compare RMSNorm with `nn.RMSNorm`, and shift the input: RMSNorm moves, LayerNorm not."""
    numbers: dict[str, list[float]] = {"output": [], "LayerNorm moves": [], "RMSNorm moves": []}
    for seed in seeds:
        input = _draw([_generator(seed)], 8, 64)[0]
        mine = RMSNorm(64, eps=1e-6).double()
        peer = nn.RMSNorm(64, eps=1e-6, dtype=torch.float64)
        numbers["output"].append(_difference(mine(input), peer(input)))
        for name, norm in (("LayerNorm", layer_norm), ("RMSNorm", rms_norm)):
            moved = _difference(norm(input + shift, 64), norm(input, 64))
            numbers[f"{name} moves"].append(moved)
    line = (
        f"[b] RMSNorm against nn.RMSNorm: output differs by {bound(numbers['output'])}; "
        f"input + {shift:g} moves LayerNorm by {bound(numbers['LayerNorm moves'])}, RMSNorm by "
        f"{spread(numbers['RMSNorm moves'])} "
        "(published single-seed values, float32: 2.38e-07; 9.54e-07, 3.05)"
    )
    exact = _exact(numbers["output"]) and _exact(numbers["LayerNorm moves"])
    return Check("b", line, exact and min(numbers["RMSNorm moves"]) > 1, numbers)


def check_c(seeds: Sequence[int] = SEEDS) -> Check:
    """Run BatchNorm both ways: the batch's statistics in training, the running ones after."""
    names = ("training - evaluation", "running mean", "running update", "training mean")
    numbers: dict[str, list[float]] = {name: [] for name in names}
    for seed in seeds:
        input = 3 * _draw([_generator(seed)], 8, 64)[0] + 7
        norm = BatchNorm(64).double()
        trained = norm(input).detach()
        evaluated = norm.eval()(input).detach()
        running = torch.stack([norm.running_mean, norm.running_var])
        update = torch.stack([0.1 * input.mean(0), 0.9 + 0.1 * input.var(0, correction=1)])
        numbers["training - evaluation"].append(_difference(trained, evaluated))
        numbers["running mean"].append(norm.running_mean.abs().mean().item())
        numbers["running update"].append(_difference(running, update))
        numbers["training mean"].append(trained.mean(0).abs().max().item())
    line = (
        "[c] BatchNorm: training and evaluation differ by "
        f"{spread(numbers['training - evaluation'])}; running mean moved from 0 to "
        f"{spread(numbers['running mean'])}, off formula by {bound(numbers['running update'])}; "
        f"mean of a feature in training {bound(numbers['training mean'])} "
        "(published single-seed values, float32: 8.37; 0.701; 8.15e-08)"
    )
    exact = _exact(numbers["training mean"]) and _exact(numbers["running update"])
    return Check("c", line, exact and min(numbers["training - evaluation"]) > 1, numbers)


# --- [d]: gradients over depth ---

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean square": lambda output, target: output.square().mean(),
    "regression": lambda output, target: F.mse_loss(output, target),
    "cross-entropy": lambda output, target: F.cross_entropy(output.mT, target.argmax(-1)),
}
PLACEMENT_NAMES = {"pre": "Pre-LN", "post": "Post-LN"}


def check_d(seeds: Sequence[int] = SEEDS) -> Check:
    """Divide the last block's weight gradient by the first's, over losses and branches.

    In the published setting (a linear branch at PyTorch's default, mean-square loss) Post-LN lies
    above 1, which was read as "Post-LN piles its gradient at the top". This check finds that again,
    and that other losses and a Kaiming-ReLU branch turn it around. So it asserts only this: Pre-LN
    is below 1 everywhere, Post-LN on both sides of 1.
    """
    numbers: dict[str, list[float]] = {}
    for placement, name in PLACEMENT_NAMES.items():
        for branch, losses in (("linear", tuple(LOSSES)), ("ReLU", ("mean square",))):
            for loss, ratios in last_over_first(seeds, placement, branch, losses).items():
                numbers[f"{name}, {branch}, {loss}"] = ratios

    def pair(setting: str) -> str:
        """Write one setting's Pre-LN and Post-LN values side by side."""
        return " | ".join(
            spread(numbers[f"{name}, {setting}"]) for name in PLACEMENT_NAMES.values()
        )

    line = (
        "[d] weight gradient, last of 48 blocks over first, Pre-LN | Post-LN: linear branch, mean "
        f"square {pair('linear, mean square')} (published single-seed values 0.40 | 2.35), "
        f"regression {pair('linear, regression')}, "
        f"cross-entropy {pair('linear, cross-entropy')}; "
        f"Kaiming-ReLU branch, mean square {pair('ReLU, mean square')}: "
        "for Post-LN the side of 1 depends on loss and branch"
    )
    medians = {key: statistics.median(values) for key, values in numbers.items()}
    pre = [median for key, median in medians.items() if key.startswith("Pre-LN")]
    post = [median for key, median in medians.items() if key.startswith("Post-LN")]
    finite = all(0 < value < math.inf for values in numbers.values() for value in values)
    return Check("d", line, finite and max(pre) < 1 and min(post) < 1 < max(post), numbers)


def last_over_first(
    seeds: Sequence[int],
    placement: str,
    branch: str,
    losses: Sequence[str],
    depth: int = 48,
    dim: int = 64,
) -> dict[str, list[float]]:
    """Divide the last block's weight-gradient norm by the first's: for each loss, a value per seed.

    The networks of all seeds run side by side, stacked along the first axis. They share no weight,
    so the gradient of their common mean is each one's own up to a constant, which the ratio drops.
    """
    generators = [_generator(seed) for seed in seeds]
    layers = [_draw_layer(generators, dim, branch) for _ in range(depth)]
    head, head_bias = _draw_layer(generators, dim, "linear")
    stream, target = _draw(generators, 16, dim), _draw(generators, 16, dim)
    activation = torch.relu if branch == "ReLU" else None
    norm = LayerNorm(dim, elementwise_affine=False)
    ends = [layers[0][0].requires_grad_(), layers[-1][0].requires_grad_()]
    for weight, bias in layers:
        write = partial(_linear, weight=weight, bias=bias, activation=activation)
        stream = Residual(write, norm, placement)(stream)
    output = _linear(stream, head, head_bias)
    ratios = {}
    for loss in losses:
        gradients = torch.autograd.grad(LOSSES[loss](output, target), ends, retain_graph=True)
        first, last = (gradient.norm(dim=(1, 2)) for gradient in gradients)
        ratios[loss] = (last / first).tolist()
    return ratios


def _linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | float = 0.0,
    activation: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Apply a layer to every seed's own input: [seeds, tokens, in] by [seeds, out, in]."""
    output = input @ weight.mT + bias
    return output if activation is None else activation(output)


def _draw_layer(
    generators: Sequence[Generator], dim: int, branch: str
) -> tuple[Tensor, Tensor | float]:
    """Draw weights and biases as `nn.Linear` does, or Kaiming's with no bias before a ReLU."""
    if branch == "ReLU":
        fill = partial(kaiming_normal_, nonlinearity="relu")
        return _draw(generators, dim, dim, fill=fill), 0.0
    weight = _draw(generators, dim, dim, fill=partial(kaiming_uniform_, a=5**0.5))
    limit = dim**-0.5
    return weight, _draw(generators, 1, dim, fill=partial(nn.init.uniform_, a=-limit, b=limit))


# --- [e] and [f]: initialization ---


def check_e(seeds: Sequence[int] = SEEDS, width: int = 512) -> Check:
    """Send a unit second moment through Linear and ReLU: Kaiming keeps it, Xavier halves it."""
    fills = {"Kaiming": partial(kaiming_normal_, nonlinearity="relu"), "Xavier": xavier_normal_}
    numbers: dict[str, list[float]] = {name: [] for name in fills}
    for seed in seeds:
        generators = [_generator(seed)]
        input = _draw(generators, width, width)
        for name, fill in fills.items():
            output = _linear(input, _draw(generators, width, width, fill=fill)).relu()
            numbers[name].append(output.square().mean().item())
    line = (
        "[e] second moment after Linear and ReLU, from 1: "
        f"Kaiming {spread(numbers['Kaiming'])} (theory 1), "
        f"Xavier {spread(numbers['Xavier'])} (theory 1/2, as fan_in = fan_out) "
        "(published single-seed values, float32: 1.000, 0.499)"
    )
    kept = all(abs(value - 1) < 0.05 for value in numbers["Kaiming"])
    halved = all(abs(value - 0.5) < 0.025 for value in numbers["Xavier"])
    return Check("e", line, kept and halved, numbers)


def check_f(seeds: Sequence[int] = SEEDS, depth: int = 50) -> Check:
    """Let unit writes grow a Pre-LN stream's mean square, unscaled and by 1/sqrt(2N).

    Each write adds 1 (unscaled) or 1/2N: N layers that write once end at 1 + N and 3/2, layers that
    write twice, as a Transformer's do, at 1 + 2N and 2. The published 1.50 is of the first kind: it
    tests the factor, not the count of two writes a layer.
    """
    writes = 2 * depth
    grown = {
        "unscaled": stream_growth(seeds, writes, 1.0),
        "scaled": stream_growth(seeds, writes, writes**-0.5),
    }
    numbers, expected = {}, {}
    for word, count in (("one write", depth), ("two writes", writes)):
        for name, added in (("unscaled", 1.0), ("scaled", 1 / writes)):
            numbers[f"{word}, {name}"] = grown[name][count]
            expected[f"{word}, {name}"] = 1 + count * added
    text = {key: f"×{spread(numbers[key])} (theory {expected[key]:.3g})" for key in numbers}
    line = (
        f"[f] mean square of a Pre-LN stream over N = {depth} layers, unscaled and by 1/sqrt(2N): "
        f"one write a layer {text['one write, unscaled']}, {text['one write, scaled']} "
        "(published single-seed values ×51.1, ×1.50); "
        f"two writes a layer {text['two writes, unscaled']}, {text['two writes, scaled']}"
    )
    medians = {key: statistics.median(values) for key, values in numbers.items()}
    passed = all(abs(medians[key] / expected[key] - 1) < 0.05 for key in numbers)
    return Check("f", line, passed, numbers)


def stream_growth(
    seeds: Sequence[int], writes: int, scale: float, dim: int = 128
) -> list[list[float]]:
    """Record the stream's mean square over its first, before and after each write, for each seed.

    A write is scale * W norm(x) with Xavier's W, which has mean square scale**2.
    """
    generators = [_generator(seed) for seed in seeds]
    stream = _draw(generators, 32, dim)
    norm = LayerNorm(dim, elementwise_affine=False)
    moments = [stream.square().mean((1, 2))]
    for _ in range(writes):
        write = partial(_linear, weight=_draw(generators, dim, dim, fill=xavier_normal_))
        stream = Residual(write, norm, "pre", scale=scale)(stream)
        moments.append(stream.square().mean((1, 2)))
    return [(moment / moments[0]).tolist() for moment in moments]


# --- all of them ---

CHECKS: dict[str, Callable[[Sequence[int]], Check]] = {
    "a": check_a,
    "b": check_b,
    "c": check_c,
    "d": check_d,
    "e": check_e,
    "f": check_f,
}


def sanity_check(seeds: Sequence[int] = SEEDS) -> list[Check]:
    """Run the six checks; one that raises is reported as failed, with what it raised.

    Raises: ValueError when there is no seed.
    """
    if not seeds:
        raise ValueError("seeds must hold at least one seed, got none")
    return [_run(label, check, seeds) for label, check in CHECKS.items()]


def _run(label: str, check: Callable[[Sequence[int]], Check], seeds: Sequence[int]) -> Check:
    """Run one check so that a broken engine still gets all six lines."""
    try:
        return check(seeds)
    except Exception as error:
        return Check(label, f"[{label}] raised {type(error).__name__}: {error}", False)


def main() -> int:
    """Print a line per check and a verdict; return the program's exit status."""
    results = sanity_check()
    for result in results:
        print(f"{result.line}  {'OK' if result.passed else 'FAILED'}")
    failed = ", ".join(f"[{result.label}]" for result in results if not result.passed)
    if failed:
        print(f"failed: {failed}", file=sys.stderr)
        return 1
    print(
        f"all {len(results)} sanity checks passed (float64, {len(SEEDS)} seeds, median [min, max])"
    )
    return 0
