"""Networks without norms: how their variance goes, what clipping does, and what DyT learns."""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

import normalization as nz
from normbook.engine.checks import require_choice
from normbook.lab import probes
from normbook.lab.ensembles import Adjust
from normbook.lab.models import ResidualMLP

WIDTH = 32  # of the residual MLP
RELU_GAIN = nz.variance_gain(torch.relu)


# --- an NF-ResNet, for its variance ---


class NFResNet(nn.Module):
    """Three stages of four NF blocks between a stem and nothing: the output is the stream.

    A branch is ReLU, 3 × 3 convolution, ReLU, 3 × 3 convolution, all standardized. The first block
    of every stage but the first doubles the channels and halves the side; its shortcut is a
    1 × 1 convolution of the scaled stream.

    `skip_gain` is the factor on every branch at the start: 1, or 0 as NFNets are trained; the first
    stage has `channels`, and `padding_mode` is that of `nn.Conv2d`.

    Shapes: input [n, 1, H, W]; output [n, 4 channels, H / 4, W / 4].
    """

    transitions = 4, 8  # the first block of every stage but the first
    depth = 12

    def __init__(
        self, *, channels: int = 32, padding_mode: str = "circular", skip_gain: float = 1.0
    ) -> None:
        super().__init__()
        betas = nz.nf_betas(self.depth, transitions=self.transitions)
        padding = {"padding": 1, "padding_mode": padding_mode}
        self.stem = _convolution(1, channels, 3, **padding)
        self.blocks = nn.ModuleList()
        for index, beta in enumerate(betas):
            wider = index in self.transitions
            width, stride = channels, 1 + wider
            channels *= stride
            first = _convolution(width, channels, 3, gamma=RELU_GAIN, stride=stride, **padding)
            second = _convolution(channels, channels, 3, gamma=RELU_GAIN, **padding)
            branch = nn.Sequential(nn.ReLU(), first, nn.ReLU(), second, nz.SkipInit(skip_gain))
            shortcut = _convolution(width, channels, 1, stride=2) if wider else None
            self.blocks.append(nz.NFResidual(branch, beta, shortcut=shortcut))

    def forward(self, input: Tensor) -> Tensor:
        """Stem, blocks."""
        x = self.stem(input)
        for block in self.blocks:
            x = block(x)
        return x


_convolution = partial(nz.ScaledWSConv2d, bias=False)


@torch.no_grad()
def stream_variances(model: NFResNet, images: Tensor) -> Tensor:
    """Measure the mean square of the stream before each block and after the last: [depth + 1]."""
    found, x = [], model.stem(images)
    x = x / x.square().mean().sqrt()  # the prediction begins with a stream of 1
    for block in model.blocks:
        found.append(x.square().mean())
        x = block(x)
    return torch.stack([*found, x.square().mean()])


def predicted_variances() -> Tensor:
    """Predict the same, from the transitions: [depth + 1]."""
    betas = nz.nf_betas(NFResNet.depth + 1, transitions=NFResNet.transitions)
    return torch.tensor(betas).square()


# --- a residual MLP in six recipes ---


class StandardizedLinear(nn.Linear):
    """A linear layer with standardized weights, a gain a row that starts at 1, and a bias of 0.

    Shapes: as `nn.Linear`.
    """

    def __init__(self, inputs: int, outputs: int, gamma: float = RELU_GAIN) -> None:
        super().__init__(inputs, outputs)
        self.gamma = gamma
        self.gain = nn.Parameter(torch.ones(outputs, 1))
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Multiply by the standardized weight."""
        weight = nz.scaled_weight_standardize(self.weight, self.gamma * self.gain)
        return nn.functional.linear(input, weight, self.bias)


RECIPES = {"none": nn.Identity, "NF": nn.Identity}  # width -> norm
RECIPES |= {kind.__name__: kind for kind in (nz.BatchNorm, nz.LayerNorm, nz.RMSNorm, nz.DyT)}


def residual_mlp(recipe: str, depth: int = 6, alpha: float | None = None) -> ResidualMLP:
    """Make a residual MLP for the digits: x + W₂ ReLU(W₁ norm(x)) in each block, norm by `recipe`.

    "none" has no norm; "NF" has no norm either, but standardized weights in an `nz.NFResidual`.
    `alpha`, if given, is where every DyT starts.

    Shapes: input [n, 1, 8, 8]; output [n, 10].

    Raises: ValueError on an unknown recipe.
    """
    require_choice("recipe", recipe, RECIPES)
    betas = nz.nf_betas(depth)
    model = ResidualMLP(
        lambda index: _block(recipe, betas[index]),
        **{"width": WIDTH, "depth": depth, "inputs": 64, "outputs": 10},
        norm=RECIPES[recipe](WIDTH),
    )
    for layer in (model.stem, model.head):
        nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        nn.init.zeros_(layer.bias)
    if alpha is not None:
        for module in model.modules():
            if isinstance(module, nz.DyT):
                nn.init.constant_(module.alpha, alpha)
    return model


def _block(recipe: str, beta: float) -> nn.Module:
    """Make one block; both layers of a branch keep the mean square."""
    if recipe == "NF":
        up, down = StandardizedLinear(WIDTH, WIDTH, 1.0), StandardizedLinear(WIDTH, WIDTH)
        return nz.NFResidual(nn.Sequential(up, nn.ReLU(), down), beta)
    up, down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    for layer, gain in ((up, 1.0), (down, math.sqrt(2))):
        nn.init.normal_(layer.weight, std=gain * WIDTH**-0.5)
        nn.init.zeros_(layer.bias)
    branch = nn.Sequential(RECIPES[recipe](WIDTH), up, nn.ReLU(), down)
    return nz.Residual(branch, None, "none")


# --- training with adaptive clipping ---


def agc(clip: float) -> Adjust:
    """Clip each unit's gradient of each member, as `nz.adaptive_clip_grad_` does for one model.

    For the argument `adjust` of `ensembles.train`. The classifier is left alone.
    """

    def adjust(parameters: dict[str, Tensor], gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        names = [name for name in parameters if not name.startswith("head.")]
        pairs = [parameters[n] for n in names], [gradients[n] for n in names]
        return gradients | dict(zip(names, _clip(*pairs, clip), strict=True))

    return adjust


@torch.no_grad()
def _clip(weights: Sequence[Tensor], gradients: Sequence[Tensor], clip: float) -> list[Tensor]:
    """Return clipped copies of gradients [members, …]; no unit spans two members."""
    rows = []
    for weight, gradient in zip(weights, gradients, strict=True):
        # [members, out, in, …] to rows of units; a member's vector or number is one unit
        shape = (-1, weight[0, 0].numel()) if weight.dim() > 2 else (len(weight), -1)
        rows.append(weight.detach().clone().reshape(shape))
        rows[-1].grad = gradient.clone().reshape(shape)
    nz.adaptive_clip_grad_(rows, clip)
    return [row.grad.reshape(weight.shape) for row, weight in zip(rows, weights, strict=True)]


# --- what a norm's curve looks like ---


class Squash(NamedTuple):
    """A fit y = a tanh(b x): steepness b, and the shares of y's energy that fits leave."""

    steepness: float
    left_by_tanh: float
    left_by_line: float


def fit_squash(x: Tensor, y: Tensor) -> Squash:
    """Fit y = a tanh(b x), and y = c x beside it, by least squares: x and y any, of one shape.

    b is the best of 41 values from 0.01 to 10 over the standard deviation of x; a is exact.
    """
    x, y = x.flatten(), y.flatten()
    steepness = torch.logspace(-2, 1, 41).to(x) / x.std()
    left = torch.stack([_left(torch.tanh(b * x), y) for b in steepness])
    best = left.argmin()
    return Squash(steepness[best].item(), left[best].item(), _left(x, y).item())


def _left(curve: Tensor, y: Tensor) -> Tensor:
    """Return the share of y's energy that the best multiple of `curve` leaves."""
    return 1 - (curve * y).sum() ** 2 / (curve.square().sum() * y.square().sum())


@torch.no_grad()
def norm_inputs(model: nn.Module, kind: type[nn.Module], inputs: Tensor) -> list[Tensor]:
    """Record what each module of the kind reads, in the order of the forward pass."""
    modules = [module for module in model.modules() if isinstance(module, kind)]
    with probes.recorded_inputs(modules) as found:
        model(inputs)
    return list(found.values())
