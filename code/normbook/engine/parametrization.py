"""The maximal update parametrization (section 9): what width does to initialization and rates.

Each weight has a kind, found by comparing its shape with that of the same model at base width:

    kind     fans that grow       for example
    input    fan_out              first layer, embeddings, learned positions
    hidden   fan_in and fan_out   attention and feed-forward matrices
    output   fan_in               the head
    vector   its only axis        biases of growing layers, gains of norms
    fixed    none                 the head's bias; everything at base width

With r_in and r_out for the growth of the fans, model over base, and everything relative to a
standard parametrization at base width:

                              input, vector   hidden        output, table 3   output, table 8
    variance of the draw      1/fan_in        1/fan_in      1/(fan_in r_in)   r_in/fan_in
    multiplier in forward     1               1             1                 1/r_in
    rate for Adam             1               1/r_in        1/r_in            1
    rate for SGD              r_out           r_out/r_in    1/r_in            r_in
    size of the gradient      1/r_out         1/r_out       1                 1/r_in

The two tables are one parametrization: w_8 = r_in w_3 makes the same function, and the rates make
it take the same steps. They must not be mixed: the multiplier of one with the variance of the other
gives an output that vanishes.

Adam divides by |gradient| + ε, so that ε must shrink like the gradient to stay as small beside it:
the last row is its factor. With a constant ε the two tables part.

The logits of attention also need 1/d in place of 1/√d, where heads grow wider: `attention`'s
`scale` says that, not this module.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from normbook.engine.checks import (
    require_choice,
    require_module,
    require_number,
    require_positive,
)
from normbook.engine.initialization import calculate_fan
from normbook.engine.model_initialization import WEIGHTED, _draw_embedding

TABLES = (3, 8)


class MupReadout(nn.Linear):
    r"""The output layer of table 8: a linear layer that divides its input by the growth of width.

    $$y = W\,(m x) + b, \qquad m = 1 / r_\mathrm{in}$$

    `mup_init_` puts it in the place of a plain `nn.Linear`, with the same parameters under the same
    names; state dicts of either load into the other.

    Shapes and errors: as `torch.nn.Linear`; ValueError on a multiplier that is not positive.

    Source: Yang et al. 2022 (arXiv 2203.03466), Table 8.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        multiplier: float = 1.0,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        require_positive("multiplier", multiplier)
        self.multiplier = multiplier

    def forward(self, input: Tensor) -> Tensor:
        """Scale the input, then apply the linear layer."""
        return F.linear(self.multiplier * input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Name the multiplier beside the sizes."""
        return f"{super().extra_repr()}, multiplier={self.multiplier:g}"


class _Weight(NamedTuple):
    """One parameter, with its layer, its kind and the growth of its fans."""

    name: str
    parameter: nn.Parameter
    layer: nn.Module
    kind: str
    r_in: float
    r_out: float


def mup_kinds(model: nn.Module, base: nn.Module) -> dict[str, str]:
    """Name the kind of every parameter: "input", "hidden", "output", "vector" or "fixed".

    `base` is the same model at base width: its parameters have the same names and as many axes, and
    differ in widths only (a size that is not a width must be equal in both). At base width itself
    nothing grows and all are "fixed".

    Only the weight of a linear or convolution layer can be hidden or output: the fan_out of an
    `nn.Embedding` is its last axis, as is that of learned positions, and only that may grow.

    Raises: TypeError unless both are modules; ValueError when their parameters differ in names,
    number of axes or sizes that are no width, or one serves as two kinds (tied embeddings).

    Source: Yang et al. 2022 (arXiv 2203.03466), Appendix B.
    """
    return {weight.name: weight.kind for weight in _weights(model, base)}


def _weights(model: nn.Module, base: nn.Module) -> list[_Weight]:
    """Compare every parameter of the model with the base's of the same name."""
    for name, module in (("model", model), ("base", base)):
        require_module(name, module)
    shapes = {name: p.shape for name, p in base.named_parameters(remove_duplicate=False)}
    found: dict[nn.Parameter, _Weight] = {}
    for path, layer in model.named_modules():
        for key, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{key}" if path else key
            shape = shapes.pop(name, None)
            if shape is None or len(shape) != parameter.dim():
                came = "none" if shape is None else f"shape {tuple(shape)}"
                raise ValueError(
                    f"base must have a parameter {name} with as many axes as the model's "
                    f"{tuple(parameter.shape)}, got {came}"
                )
            weight = _Weight(name, parameter, layer, *_kind(layer, name, parameter.shape, shape))
            if weight.kind != found.setdefault(parameter, weight).kind:
                raise ValueError(
                    f"model must not share a parameter between kinds, got {name}: {weight.kind} "
                    f"and {found[parameter].name}: {found[parameter].kind}"
                )
    if shapes:
        raise ValueError(f"base must have the model's parameters only, got {', '.join(shapes)}")
    return list(found.values())


def _kind(layer: nn.Module, name: str, shape: torch.Size, base: torch.Size) -> tuple:
    """Tell a parameter's kind, and how much its fan_in and its fan_out grow."""
    growth = [size / base_size for size, base_size in zip(shape, base, strict=True)]
    growing = [axis for axis, factor in enumerate(growth) if factor != 1]
    if isinstance(layer, WEIGHTED) and len(shape) > 1:
        kinds = {(): "fixed", (0,): "input", (1,): "output", (0, 1): "hidden"}
        fans = (growth[1], growth[0])
    else:
        kinds = {(): "fixed", (len(shape) - 1,): "vector" if len(shape) == 1 else "input"}
        fans = (1.0, growth[-1] if growth else 1.0)
    if tuple(growing) not in kinds:
        raise ValueError(
            f"base must differ in widths only, got {tuple(base)} for {name} of shape "
            f"{tuple(shape)} in {type(layer).__name__}"
        )
    return kinds[tuple(growing)], *fans


# --- initialization ---


def mup_init_(
    model: nn.Module,
    base: nn.Module,
    table: int = 8,
    gain: float = 1.0,
    generator: Generator | None = None,
) -> nn.Module:
    r"""Draw the weights of every linear, convolution and embedding layer as μP asks; biases 0.

    $$\mathrm{Var}[W] = g^2 / \mathrm{fan\_in}, \quad
      \mathrm{Var}[W_\mathrm{output}] = g^2 / (\mathrm{fan\_in}\, r_\mathrm{in}) \ \text{(table 3)}
      \ \text{or} \ g^2 r_\mathrm{in} / \mathrm{fan\_in} \ \text{(table 8)}$$

    At base width this is a plain Kaiming draw with this gain. Embeddings are N(0, 1); gains of
    norms and parameters outside of these layers are left as they are. With table 8 each output
    layer becomes a `MupReadout` of multiplier 1 / r_in, with table 3 one of multiplier 1, as a
    plain `nn.Linear` is. Both tables draw the same numbers.

    Args:
        model: changed in place; a later call with another table draws and sets it anew.
        base: the same model at base width, see `mup_kinds`; its weights do not matter.
        table: of Yang et al.: 3 or 8.
        gain: of every linear and convolution layer, such as sqrt(2) for relu.
        generator: of the draws; the global one if None.

    Raises: as `mup_kinds`; ValueError on another table, a negative gain, or with table 8 an output
    layer that is not an `nn.Linear` inside of the model.

    Source: Yang et al. 2022 (arXiv 2203.03466), Tables 3 and 8.
    """
    require_choice("table", table, TABLES)
    require_number("gain", gain, low=0)
    weights = _weights(model, base)
    for weight in weights:
        if weight.kind == "output":
            _set_multiplier(model, weight, 1 / weight.r_in if table == 8 else 1.0)
    with torch.no_grad():
        for weight in weights:
            if isinstance(weight.layer, nn.Embedding):
                _draw_embedding(weight.layer, 1.0, generator)
            elif isinstance(weight.layer, WEIGHTED):
                _draw(weight, table, gain, generator)
    return model


def _draw(weight: _Weight, table: int, gain: float, generator: Generator | None) -> None:
    """Draw one weight of a linear or convolution layer in place; its bias becomes 0."""
    if weight.name.rpartition(".")[2] == "bias":
        weight.parameter.zero_()
        return
    std = gain / math.sqrt(calculate_fan(weight.parameter)[0])
    if weight.kind == "output":
        std *= weight.r_in ** (0.5 if table == 8 else -0.5)
    weight.parameter.normal_(0.0, std, generator=generator)


def _set_multiplier(model: nn.Module, weight: _Weight, multiplier: float) -> None:
    """Set the multiplier of an output layer; one that has none is replaced by a `MupReadout`."""
    layer, path = weight.layer, weight.name.rpartition(".")[0]
    if isinstance(layer, MupReadout):
        layer.multiplier = multiplier
    elif multiplier != 1:
        if type(layer) is not nn.Linear or not path:
            raise ValueError(
                "table 8 needs output layers that are an nn.Linear inside of the model, "
                f"got {weight.name} of {type(layer).__name__}"
            )
        # on "meta", so that weights which are not kept take nothing from the random generator
        sizes = layer.in_features, layer.out_features
        readout = MupReadout(*sizes, multiplier=multiplier, device="meta")
        readout.weight, readout.bias = layer.weight, layer.bias
        parent, _, key = path.rpartition(".")
        setattr(model.get_submodule(parent), key, readout.train(layer.training))


# --- learning rates ---


def mup_param_groups(
    model: nn.Module,
    base: nn.Module,
    lr: float,
    optimizer: str = "adam",
    table: int = 8,
    eps: float = 1e-8,
) -> list[dict[str, Any]]:
    """Make the parameter groups of an optimizer, each with the rate that its kind needs.

    For `torch.optim.Adam(groups)` and its relatives, or `torch.optim.SGD(groups)`, momentum
    included. The factors are those at the top of this module. For Adam each group also has its own
    `eps`. A group's "kind" says what its parameters are. Weight decay is the caller's: what decays
    a weight each step is lr * weight_decay in AdamW, so a constant pull needs weight_decay times
    the growth that lr was divided by.

    Args:
        model: initialized by `mup_init_` with the same base and table.
        base: the same model at base width, see `mup_kinds`.
        lr: the rate at base width.
        optimizer: "adam" (any optimizer whose step does not depend on the gradient's scale) or
            "sgd".
        table: of Yang et al.: 3 or 8.
        eps: Adam's ε at base width.

    Raises: as `mup_kinds`; ValueError on an unknown optimizer or table, a negative rate or eps, or
    an output layer whose multiplier is not that of the table.

    Source: Yang et al. 2022 (arXiv 2203.03466), Tables 3 and 8, and Appendix B for ε.
    """
    require_choice("table", table, TABLES)
    require_number("lr", lr, low=0)
    require_number("eps", eps, low=0)
    require_choice("optimizer", optimizer, ("adam", "sgd"))
    groups: dict[tuple, dict[str, Any]] = {}
    for weight in _weights(model, base):
        _require_multiplier(weight, table)
        gradient = _gradient_factor(weight, table)
        key = (weight.kind, _rate_factor(weight, optimizer, table), gradient)
        group = groups.setdefault(key, {"params": [], "kind": weight.kind, "lr": lr * key[1]})
        group["params"].append(weight.parameter)
        if optimizer == "adam":
            group["eps"] = eps * gradient
    return list(groups.values())


def _require_multiplier(weight: _Weight, table: int) -> None:
    """Raise unless an output layer multiplies by what its table says."""
    if weight.kind != "output":
        return
    expected = 1 / weight.r_in if table == 8 else 1.0
    multiplier = getattr(weight.layer, "multiplier", 1.0)
    if not math.isclose(multiplier, expected):
        raise ValueError(
            f"table {table} needs an output multiplier of {expected:g}, got {multiplier:g} in "
            f"{weight.name}: call mup_init_ with the same base and table first"
        )


def _rate_factor(weight: _Weight, optimizer: str, table: int) -> float:
    """Look up the rate of a weight, relative to base width."""
    if weight.kind == "output":
        return {3: 1 / weight.r_in, 8: 1.0 if optimizer == "adam" else weight.r_in}[table]
    return (1.0 if optimizer == "adam" else weight.r_out) / weight.r_in


def _gradient_factor(weight: _Weight, table: int) -> float:
    """Tell the size of a weight's gradient, relative to base width."""
    if weight.kind == "output":
        return 1 / weight.r_in if table == 8 else 1.0
    return 1 / weight.r_out
