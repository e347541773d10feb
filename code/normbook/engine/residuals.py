"""Residual connections and where their norms stand (sections 5 to 7 of the book)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normbook.engine.attention import FeedForward, MultiHeadAttention
from normbook.engine.checks import (
    require_callable,
    require_choice,
    require_floating,
    require_number,
)
from normbook.engine.layer_norms import LayerNorm


class Placement(NamedTuple):
    """A way to place norms around a branch: which norms it uses, and y = formula(residual, x)."""

    norms: tuple[str, ...]
    formula: Callable[["Residual", Tensor], Tensor]


# r.add(x, y) is skip_scale * x + scale * y
PLACEMENTS = {
    "none": Placement((), lambda r, x: r.add(x, r.branch(x))),
    "pre": Placement(("norm",), lambda r, x: r.add(x, r.branch(r.norm(x)))),
    "post": Placement(("norm",), lambda r, x: r.norm(r.add(x, r.branch(x)))),
    "sandwich": Placement(
        ("norm", "post_norm"), lambda r, x: r.add(x, r.post_norm(r.branch(r.norm(x))))
    ),
    "output": Placement(("post_norm",), lambda r, x: r.add(x, r.post_norm(r.branch(x)))),
}


def _placement(name: str) -> Placement:
    """Look a placement up by name; the error names those there are."""
    require_choice("placement", name, PLACEMENTS)
    return PLACEMENTS[name]


class Residual(nn.Module):
    """A branch beside a skip connection, with its norm placed as `placement` says.

        "none"        y = skip_scale * x + scale * branch(x)
        "pre"         y = skip_scale * x + scale * branch(norm(x))
        "post"        y = norm(skip_scale * x + scale * branch(x))
        "sandwich"    y = skip_scale * x + scale * post_norm(branch(norm(x)))
        "output"      y = skip_scale * x + scale * post_norm(branch(x))

    `branch`, `norm` and `post_norm` map a tensor to one of the same shape. `scale` is a number, or
    a module applied to what the branch writes: `LayerScale`, `ReZero`, `SkipInit`. DeepNorm is
    placement "post" with `skip_scale` from `deepnorm_constants`.

    Shapes: input and output alike, as the branch has them.

    Raises: ValueError on an unknown placement, a norm that the placement needs and lacks or does
    not use, or a branch that changes the shape (its sum with the skip would be broadcast);
    TypeError on anything that cannot be called, or a scale that is neither a number nor a module.

    Source: He et al. 2015 (arXiv 1512.03385), Eq. 1; Xiong et al. 2020 (arXiv 2002.04745), Table 1,
    for "pre" and "post"; Ding et al. 2021 (arXiv 2105.13290) for "sandwich"; Liu et al.
    2022 (arXiv 2111.09883) for "output".
    """

    def __init__(
        self,
        branch: Callable[[Tensor], Tensor],
        norm: Callable[[Tensor], Tensor] | None = None,
        placement: str = "pre",
        *,
        post_norm: Callable[[Tensor], Tensor] | None = None,
        scale: float | nn.Module = 1.0,
        skip_scale: float = 1.0,
    ) -> None:
        super().__init__()
        require_callable("branch", branch)
        _require_norms(placement, {"norm": norm, "post_norm": post_norm})
        if not isinstance(scale, nn.Module):
            require_number("scale", scale)
        require_number("skip_scale", skip_scale)
        self.branch = branch
        self.norm = norm
        self.post_norm = post_norm
        self.placement = placement
        self.scale = scale
        self.skip_scale = skip_scale

    def forward(self, input: Tensor) -> Tensor:
        """Apply the formula of the placement to `input`."""
        require_floating("input", input)
        return _placement(self.placement).formula(self, input)

    def add(self, skip: Tensor, write: Tensor) -> Tensor:
        """Return skip_scale * skip + scale * write, what the stream carries after this write."""
        write = self.scale(write) if isinstance(self.scale, nn.Module) else self.scale * write
        if write.shape != skip.shape:
            raise ValueError(
                f"branch must keep the input's shape {tuple(skip.shape)}, got {tuple(write.shape)}"
            )
        return self.skip_scale * skip + write

    def extra_repr(self) -> str:
        """Name the settings that the modules below do not show."""
        scale = "" if isinstance(self.scale, nn.Module) else f", scale={self.scale:g}"
        return f"placement={self.placement!r}, skip_scale={self.skip_scale:g}{scale}"


def _require_norms(placement: str, norms: dict[str, Callable | None]) -> None:
    """Raise unless exactly the norms that `placement` uses are given."""
    used = _placement(placement).norms
    for name, norm in norms.items():
        if norm is None and name in used:
            raise ValueError(f"{name} must be given with placement {placement!r}, got None")
        if norm is not None and name not in used:
            raise ValueError(
                f"{name} must be None with placement {placement!r}, which does not use it"
            )
        if norm is not None:
            require_callable(name, norm)


class TransformerBlock(nn.Module):
    """Two residual writes: self-attention, then a feed-forward network.

    `norm` makes a norm from a width (`LayerNorm`, `RMSNorm`, or any callable dim -> module), one
    for each place that `placement` names; it is None with placement "none". `scale` and
    `skip_scale` go to both residuals; a `scale` that is learned is given as what makes it, a
    callable dim -> module. `attention` holds further arguments of `MultiHeadAttention`.

    Shapes: input and output [..., T, dim].

    Raises: as `Residual`, `MultiHeadAttention` and `FeedForward`.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.1; Xiong et al. 2020 (arXiv
    2002.04745), Table 1.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        hidden: int | None = None,
        *,
        norm: Callable[[int], nn.Module] | None = LayerNorm,
        placement: str = "pre",
        causal: bool = False,
        activation: Callable[[Tensor], Tensor] = torch.relu,
        skip_scale: float = 1.0,
        scale: float | Callable[[int], nn.Module] = 1.0,
        attention: dict[str, object] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(scale, nn.Module) or not callable(scale):
            require_number("scale", scale)
        used = _placement(placement).norms
        if (norm is None) == bool(used):
            expected = "a callable dim -> module" if used else "None"
            raise ValueError(f"norm must be {expected} with placement {placement!r}, got {norm!r}")
        if norm is not None:
            require_callable("norm", norm)

        def residual(branch: nn.Module) -> Residual:
            """Put a branch into a residual with norms of its own."""
            norms = {name: norm(dim) for name in used}
            own = scale(dim) if callable(scale) else scale
            return Residual(branch, placement=placement, scale=own, skip_scale=skip_scale, **norms)

        self.attention = residual(MultiHeadAttention(dim, heads, causal, **(attention or {})))
        self.feed_forward = residual(FeedForward(dim, hidden, activation))

    def forward(self, input: Tensor) -> Tensor:
        """Write attention's output to the stream, then the feed-forward network's."""
        return self.feed_forward(self.attention(input))
