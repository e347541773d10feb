"""The networks that the book probes and trains, assembled from the engine's layers.

All keep their layers in `blocks`, which is where the probes look. `build` makes any of them
reproducible: float64 weights, drawn on the CPU from one seed.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import normalization as nz
from normbook.engine.checks import require_choice, require_size
from normbook.lab.session import change_weights_, pick_device

NORMS = {"batch": nz.BatchNorm, "layer": nz.LayerNorm, "rms": nz.RMSNorm}
ACTIVATIONS = {"linear": nn.Identity, "relu": nn.ReLU, "tanh": nn.Tanh}


def build(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call `make()` so that the model depends on `seed` only, and move it to `pick_device()`.

    Weights are drawn in float64 on the CPU; the generator and the default dtype of the caller are
    left as they were. For example `build(lambda: Transformer(dim=16, …), seed=0)`.

    `NORMBOOK_PERTURB` changes every weight, as `session.begin` says.
    """
    dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        torch.set_default_dtype(torch.float64)
        try:
            model = make()
        finally:
            torch.set_default_dtype(dtype)
    change_weights_(model.parameters())
    return model.to(pick_device())


def perturb_(model: nn.Module, relative: float, seed: int = 0) -> nn.Module:
    """Multiply every weight in place by 1 + relative · z, with z standard normal."""
    if not 0 <= relative < 1:
        raise ValueError(f"relative must be in [0, 1), got {relative}")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.mul_(1 + relative * noise.to(weight))
    return model


# --- initialization ---


def initialize_(model: nn.Module, rule: str | float, nonlinearity: str = "linear") -> nn.Module:
    """Draw the weights of every `nn.Linear` in the model in place; their biases become 0.

    Args:
        model: any module.
        rule: "xavier" (normal, variance 2 / (fan_in + fan_out)), "kaiming" (normal, variance
            gain² / fan_in with the gain of `nonlinearity`), a number (the standard deviation of a
            naive normal draw), or "default", which leaves PyTorch's draw and its biases alone.
        nonlinearity: a name that `nz.calculate_gain` knows; used by "kaiming" only.
    """
    rules = {
        "xavier": nz.xavier_normal_,
        "kaiming": lambda weight: nz.kaiming_normal_(weight, nonlinearity=nonlinearity),
    }
    if isinstance(rule, bool) or not (isinstance(rule, int | float) or rule in (*rules, "default")):
        raise ValueError(f"rule must be 'default', 'xavier', 'kaiming' or a number, got {rule!r}")
    if rule == "default":
        return model
    draw = rules.get(rule, lambda weight: nn.init.normal_(weight, std=rule))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            draw(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def require_sizes(**sizes: int) -> None:
    """Raise unless every size is a whole number of at least 1."""
    for name, size in sizes.items():
        require_size(name, size)


# --- MLPs ---


class MLP(nn.Module):
    """A deep network of equal layers, plain or with skips, with norms or without.

    A layer is x ↦ φ(norm(Wx + b)), where the norm may be missing; with `residual` it is added to
    its input: x ↦ x + φ(norm(Wx + b)); before BatchNorm there is no b. A linear stem before the
    layers maps the flattened input to `width`, a linear head after them maps to `outputs`.

    Shapes: input [n, …] with `inputs` values an example; output [n, outputs].

    Args:
        inputs: values of one example.
        width: of every layer.
        depth: number of layers between stem and head.
        outputs: classes.
        activation: "relu", "tanh" or "linear".
        norm: None, "batch", "layer" or "rms".
        residual: whether each layer has a skip.
        init: the rule of `initialize_` for all linear layers, with the activation's gain for the
            layers between stem and head.

    Raises: ValueError on an unknown name or a size below 1.
    """

    def __init__(
        self,
        *,
        inputs: int,
        width: int,
        depth: int,
        outputs: int,
        activation: str = "relu",
        norm: str | None = None,
        residual: bool = False,
        init: str | float = "default",
    ) -> None:
        super().__init__()
        require_sizes(inputs=inputs, width=width, depth=depth, outputs=outputs)
        require_choice("activation", activation, ACTIVATIONS)
        require_choice("norm", norm, [None, *NORMS])
        self.stem = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(_layer(width, activation, norm, residual) for _ in range(depth))
        self.head = nn.Linear(width, outputs)
        initialize_(self.stem, init)
        initialize_(self.blocks, init, activation)
        initialize_(self.head, init)

    def forward(self, input: Tensor) -> Tensor:
        """Flatten each example; stem, layers, head."""
        x = self.stem(input.flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _layer(width: int, activation: str, norm: str | None, residual: bool) -> nn.Module:
    """Make one layer φ(norm(Wx + b)), with a skip around it or without."""
    norms = [] if norm is None else [NORMS[norm](width)]
    # BatchNorm subtracts whatever a bias before it adds: its gradient would be rounding noise
    linear = nn.Linear(width, width, bias=norm != "batch")
    branch = nn.Sequential(linear, *norms, ACTIVATIONS[activation]())
    return nz.Residual(branch, placement="none") if residual else branch


class ResidualMLP(nn.Module):
    """A stem, `depth` residual blocks of any recipe, a norm, a head; `block` is the recipe.

    Shapes: input [n, …] with `inputs` values an example, output [n, outputs]; without `inputs`
    there is neither stem nor head, and both are [n, width].

    Args:
        block: maps the number of a block, from 0, to a module that maps [n, width] to [n, width]:
            an `nz.Residual` with its norm and scale, an `nz.NFResidual`, or another.
        width: of the stream.
        depth: number of blocks.
        inputs: values of one example.
        outputs: classes.
        stem: the map to the stream; PyTorch's linear layer if None.
        norm: stands before the head.

    Raises: ValueError on a size below 1.
    """

    def __init__(
        self,
        block: Callable[[int], nn.Module],
        *,
        width: int,
        depth: int,
        inputs: int | None = None,
        outputs: int | None = None,
        stem: nn.Module | None = None,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        require_sizes(width=width, depth=depth)
        has_ends = inputs is not None
        if has_ends:
            require_sizes(inputs=inputs, outputs=outputs)
        self.stem = stem or (nn.Linear(inputs, width) if has_ends else nn.Identity())
        self.blocks = nn.ModuleList(block(index) for index in range(depth))
        self.norm = norm or nn.Identity()
        self.head = nn.Linear(width, outputs) if has_ends else nn.Identity()

    def forward(self, input: Tensor) -> Tensor:
        """Flatten each example; stem, blocks, norm, head."""
        x = self.stem(input.flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# --- Transformer ---


class Transformer(nn.Module):
    """Embedding, learned positions, `depth` blocks, perhaps a final norm, a linear head.

    Shapes: input [n, T] of symbols 0 … vocabulary − 1, or [n, T, features]; T at most `length`.
    Output [n, T, outputs], or [n, outputs] where `pool` is "mean".

    Args:
        dim: width of the residual stream.
        depth: number of blocks, two residual writes each.
        outputs: logits a position.
        length: longest sequence.
        vocabulary: number of symbols, embedded by a table drawn from N(0, 1); or else
        features: width of real-valued tokens, embedded by a linear layer.
        heads: attention heads.
        hidden: width inside the feed-forward network, 4 dim if None.
        norm: "layer", "rms", a callable dim -> module, or None (with placement "none").
        placement: where the norms stand, as in `nz.Residual`; "none" uses `norm` at the end only.
        final_norm: a norm before the head; by default where the blocks do not end in one.
        causal: whether a position sees earlier ones only.
        pool: None, or "mean" over the positions before the head.
        init: the rule of `initialize_` for all linear layers ("kaiming" with gain 1); positions are
            drawn from N(0, 0.02²).
        block: further arguments of `nz.TransformerBlock`.

    Raises: ValueError on a size below 1, an unknown name, or options that exclude each other.
    """

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        outputs: int,
        length: int,
        vocabulary: int | None = None,
        features: int | None = None,
        heads: int = 1,
        hidden: int | None = None,
        norm: str | Callable[[int], nn.Module] | None = "layer",
        placement: str = "pre",
        final_norm: bool | None = None,
        causal: bool = False,
        pool: str | None = None,
        init: str | float = "xavier",
        **block,
    ) -> None:
        super().__init__()
        require_sizes(dim=dim, depth=depth, outputs=outputs, length=length)
        make_norm, final_norm = _norm_choice(norm, placement, final_norm)
        require_choice("pool", pool, [None, "mean"])
        self.pool = pool
        self.embedding = _embedding(vocabulary, features, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(length, dim))
        block |= {"placement": placement, "causal": causal}
        block["norm"] = None if placement == "none" else make_norm
        self.blocks = nn.ModuleList(
            nz.TransformerBlock(dim, heads, hidden, **block) for _ in range(depth)
        )
        self.final_norm = make_norm(dim) if final_norm else nn.Identity()
        self.head = nn.Linear(dim, outputs)
        initialize_(self, init)

    def forward(self, input: Tensor) -> Tensor:
        """Compute the logits of every position, or of the sequence."""
        x = self.embedding(input)
        if x.shape[-2] > len(self.positions):
            most = len(self.positions)
            raise ValueError(f"input must have at most {most} positions, got {x.shape[-2]}")
        x = x + self.positions[: x.shape[-2]]
        for block in self.blocks:
            x = block(x)
        x = self.final_norm(x)
        return self.head(x.mean(-2) if self.pool == "mean" else x)


def _embedding(vocabulary: int | None, features: int | None, dim: int) -> nn.Module:
    """Make a table for symbols, or a linear layer for real-valued tokens."""
    if (vocabulary is None) == (features is None):
        got = f"vocabulary={vocabulary}, features={features}"
        raise ValueError(f"exactly one of vocabulary and features must be given, got {got}")
    if vocabulary is not None:
        require_size("vocabulary", vocabulary)
        return nn.Embedding(vocabulary, dim)
    require_size("features", features)
    return nn.Linear(features, dim)


def _norm_choice(
    norm: str | Callable | None, placement: str, final_norm: bool | None
) -> tuple[Callable[[int], nn.Module] | None, bool]:
    """Decide what makes a norm, and whether one stands before the head."""
    if isinstance(norm, str):
        # BatchNorm takes its channels from axis 1, where a Transformer has its positions.
        require_choice("norm", norm, ["layer", "rms"])
        norm = NORMS[norm]
    if final_norm is None:
        final_norm = norm is not None and placement != "post"
    if norm is None and (final_norm or placement != "none"):
        options = f"placement={placement!r} and final_norm={final_norm}"
        raise ValueError(f"norm must be given with {options}, got None")
    return norm, final_norm
