"""How a network starts: the map of the second moment, signals through linear layers, one table.

And deep residual networks without norms: Fixup, and Fixup with one of its rules left out.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

import normalization as nz
from normbook.engine.checks import require_choice
from normbook.lab import probes, training
from normbook.lab.ensembles import Adjust
from normbook.lab.models import ResidualMLP

Rule = Callable[[int, int], float]

# The variance of a weight matrix of n inputs and m outputs.
RULES: dict[str, Rule] = {
    "fan_in": lambda n, m: 1 / n,
    "fan_out": lambda n, m: 1 / m,
    "xavier": lambda n, m: 2 / (n + m),
}


def moment_map(function: Callable[[Tensor], Tensor], gain: float, q: float) -> float:
    """Return g² E[f(√q z)²] for z ~ N(0, 1): the second moment one wide layer later.

    q is the second moment of what enters the nonlinearity; weights have variance g² / fan_in.
    """
    return (gain / nz.second_moment_gain(lambda z: function(math.sqrt(q) * z))) ** 2


def iterate(
    function: Callable[[Tensor], Tensor], gain: float, start: float, layers: int
) -> list[float]:
    """Apply `moment_map` again and again: [layers + 1] second moments, the start first."""
    found = [start]
    for _ in range(layers):
        found.append(moment_map(function, gain, found[-1]))
    return found


def slope(function: Callable[[Tensor], Tensor], gain: float, q: float = 1.0) -> float:
    """Return the derivative of `moment_map` by q, by a central difference.

    Above 1 at a fixed point, a deviation grows by this factor a layer.
    """
    step = 1e-4 * q
    high, low = (moment_map(function, gain, q + sign * step) for sign in (1, -1))
    return (high - low) / (2 * step)


def wide_net(
    function: Callable[[Tensor], Tensor],
    gain: float,
    *,
    start: float = 1.0,
    nets: int = 5,
    width: int = 256,
    layers: int = 30,
    rescaled: bool = False,
) -> Tensor:
    """Measure what `iterate` predicts, in networks of finite width: [nets, layers + 1].

    Mean squares before each nonlinearity, over 8 Gaussian inputs of second moment `start`; weights
    have variance gain² / width. With `rescaled` the same network also carries each input at second
    moment 1, and both are divided by whatever brings this reference back to 1 at each layer.
    """
    normal = drawing(0)
    x = normal(nets, 8, width)
    x = x / x.square().mean(2, keepdim=True).sqrt()
    x = torch.stack([x, math.sqrt(start) * x])
    found = [_energies(x)]
    for _ in range(layers):
        x = function(x) @ (gain / math.sqrt(width) * normal(nets, width, width))
        if rescaled:
            x = x / x[0].square().mean(2, keepdim=True).sqrt()
        found.append(_energies(x))
    return torch.stack(found, dim=-1)[1]


def drawing(seed: int) -> Callable[..., Tensor]:
    """Return what draws standard normal numbers of any sizes, one tensor after the other."""
    generator = torch.Generator().manual_seed(seed)
    return partial(torch.randn, generator=generator, dtype=torch.float64)


def _energies(x: Tensor) -> Tensor:
    """Average the squares over examples and features: [..., nets, examples, width] to nets."""
    return x.square().mean((-2, -1))


def linear_energies(
    widths: Sequence[int], rule: str, *, nets: int, examples: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Send a signal forward through linear layers, and a gradient back.

    Layer l maps widths[l] to widths[l + 1], with the variance of `RULES[rule]`. Returns the mean
    squares of the signal and of the gradient at every place, [nets, layers + 1] each; the signal
    begins with 1 at the first place, the gradient with 1 at the last.
    """
    normal, pairs = drawing(seed), itertools.pairwise(widths)
    weights = [normal(nets, n, m) * math.sqrt(RULES[rule](n, m)) for n, m in pairs]
    signal, gradient = normal(nets, examples, widths[0]), normal(nets, examples, widths[-1])
    forward, backward = [signal], [gradient]
    for weight in weights:
        forward.append(forward[-1] @ weight)
    for weight in reversed(weights):
        backward.append(backward[-1] @ weight.mT)
    signals, gradients = (
        torch.stack([_energies(x) for x in xs], dim=1) for xs in (forward, backward[::-1])
    )
    return signals / signals[:, :1], gradients / gradients[:, -1:]


def diagnose(model: nn.Module, inputs: Tensor, targets: Tensor, rate: float) -> dict[str, Tensor]:
    """Read four numbers off every linear layer, each [layers], in the order of `modules()`.

    "activations": root mean square of the layer's outputs; "gradients": of the loss by these
    outputs, times the number of examples; "weights": of its weights; "updates": of a step of
    gradient descent at this rate, as a share of the weights.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    with probes.recorded(layers) as outputs:
        loss = training.cross_entropy(model(inputs), targets)
    weights = [layer.weight for layer in layers]
    found = torch.autograd.grad(loss, [*(outputs[layer] for layer in layers), *weights])
    by_output, by_weight = found[: len(layers)], found[len(layers) :]
    sizes = _sizes(weights)
    return {
        "activations": _sizes([outputs[layer] for layer in layers]),
        "gradients": _sizes(by_output) * len(inputs),
        "weights": sizes,
        "updates": rate * _sizes(by_weight) / sizes,
    }


def _sizes(tensors: Sequence[Tensor]) -> Tensor:
    """Return the root mean square of each tensor: [tensors], on the CPU."""
    return torch.stack([tensor.detach().square().mean().sqrt() for tensor in tensors]).cpu()


# --- Fixup ---

FIXUP = "last", "classifier", "depth", "scalars"  # its rules
LEAVES_OUT = {"fixup": (), "naive": FIXUP, "batch": FIXUP} | {rule: (rule,) for rule in FIXUP}


def fixup_mlp(recipe: str, *, inputs: int, width: int, depth: int, outputs: int) -> ResidualMLP:
    """Make a residual MLP of the engine's `FixupBranch`es, by Fixup or without some of its rules.

    "fixup" follows all rules; "naive" none. The others leave one out: "last" keeps Kaiming's draw
    in the last layer of each branch; "classifier" in the head; "depth" leaves out the factor
    L**(-1/2); "scalars" lets the scalars stay at 0 and 1, where `hold_scalars` holds them. "batch"
    is "naive" with a BatchNorm after each layer of a branch, and without scalars.

    Shapes: input [n, …] with `inputs` values an example, output [n, outputs].

    Raises: ValueError on an unknown recipe.
    """
    require_choice("recipe", recipe, LEAVES_OUT)
    left_out = LEAVES_OUT[recipe]
    model = ResidualMLP(
        lambda _: nz.Residual(nz.FixupBranch(width), placement="none"),
        **{"width": width, "depth": depth, "inputs": inputs, "outputs": outputs},
        stem=nn.Sequential(nn.Linear(inputs, width), nn.ReLU()),
    )
    nz.fixup_init_(model, model.head)
    if "classifier" in left_out:
        nz.kaiming_normal_(model.head.weight, nonlinearity="linear")
    for block in model.blocks:
        first, last = block.branch.layers
        if "depth" in left_out:
            with torch.no_grad():
                first.weight *= depth**0.5
        if "last" in left_out:
            nz.kaiming_normal_(last.weight, nonlinearity="linear")
        if recipe == "batch":
            norms = [nz.BatchNorm(width, affine=False, track_running_stats=False) for _ in range(2)]
            block.branch = nn.Sequential(first, norms[0], nn.ReLU(), last, norms[1])
    return model


def hold_scalars(recipes: Sequence[str]) -> Adjust:
    """Let Fixup's scalars learn only in members whose recipe has them; for `ensembles.train`."""
    learns = torch.tensor([float("scalars" not in LEAVES_OUT[recipe]) for recipe in recipes])

    def adjust(parameters: dict[str, Tensor], gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        return gradients | {
            name: gradient * learns.to(gradient).view(-1, *[1] * (gradient.dim() - 1))
            for name, gradient in gradients.items()
            if name.endswith(("biases", "multiplier"))
        }

    return adjust
