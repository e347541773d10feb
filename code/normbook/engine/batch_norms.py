"""Batch normalization from scratch (section 2 of the book); signatures and state are PyTorch's."""

import torch
from torch import Tensor

from normbook.engine.checks import (
    computation_dtype,
    require_batch,
    require_width,
    values_per_channel,
)
from normbook.engine.shared import ChannelNorm, apply_affine, center, move_running_, per_channel


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    r"""Normalize each channel over the batch and all spatial axes.

    $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \cdot \gamma + \beta$$

    In training $\mu$ and $\sigma^2$ are the batch's mean and biased variance, and the running
    statistics, where given, move in place: new = (1 - momentum) * old + momentum * batch, where the
    variance that is stored is the *unbiased* one, $\sigma^2 m / (m - 1)$ for m values per channel.
    Otherwise they are the running ones.

    Shapes: input and output [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W]; all others [C].

    Raises: ValueError on another rank or shape, negative eps, momentum outside [0, 1], a single
    value per channel in training, or missing running statistics otherwise; TypeError on a dtype the
    rule excludes.

    Source: Ioffe & Szegedy 2015 (arXiv 1502.03167), Algorithms 1 and 2.
    """
    parameters = {"weight": weight, "bias": bias}
    require_batch(input, running_mean, running_var, parameters, training, momentum, eps)
    axes = (0, *range(2, input.dim()))
    x = input.to(computation_dtype(input))
    if training:
        centered, variance = center(x, axes)
        if running_mean is not None:
            _update_running_statistics(
                x.detach(), variance.detach(), running_mean, running_var, momentum
            )
    else:
        centered = x - per_channel(running_mean, x)
        variance = per_channel(running_var, x)
    normalized = centered * torch.rsqrt(variance + eps)
    return apply_affine(normalized, per_channel(weight, x), per_channel(bias, x)).to(input.dtype)


def _update_running_statistics(
    input: Tensor,
    variance: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float | Tensor,
) -> None:
    """Move the running statistics toward the batch's, in place; an empty batch changes nothing."""
    count = values_per_channel(input)
    if count == 0:
        return
    mean = input.mean((0, *range(2, input.dim())))
    unbiased = variance.reshape(-1) * (count / (count - 1))
    move_running_(running_mean, mean, momentum)
    move_running_(running_var, unbiased, momentum)


class BatchNorm(ChannelNorm):
    """Normalization by batch statistics, ranks 2 to 5; exchanges state dicts with `nn.BatchNorm…d`.

    In training it normalizes with the batch's statistics and moves the running ones (see
    `batch_norm`); in evaluation it normalizes with the running ones, or with the batch's where
    `track_running_stats=False`. `momentum=None` keeps the plain average over all batches so far
    instead of the exponential one.

    Shapes: as `batch_norm`, with C = num_features.

    Raises: ValueError and TypeError as `batch_norm`; ValueError when C is not num_features.

    Source: Ioffe & Szegedy 2015 (arXiv 1502.03167).
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize `input` and, in training, move the running statistics."""
        require_width(input, self.num_features)
        moves = self.training and self.track_running_stats and self.running_mean is not None
        uses_running = moves or not self.training
        output = batch_norm(
            input,
            self.running_mean if uses_running else None,
            self.running_var if uses_running else None,
            self.weight,
            self.bias,
            training=self.training or self.running_mean is None,
            momentum=self._momentum() if moves else 0.0,
            eps=self.eps,
        )
        if moves:
            self.num_batches_tracked.add_(1)
        return output

    def _momentum(self) -> float | Tensor:
        """Weigh this batch in the running statistics: 1/n for the n-th batch of a plain average."""
        if self.momentum is not None:
            return self.momentum
        # a tensor throughout: reading its value would break compile(fullgraph=True) and vmap
        count = self.num_batches_tracked + 1
        return 1.0 / count.to(computation_dtype(self.running_mean))
