"""How few examples a norm's statistics may come from: a small CNN, with any norm, on the digits.

Two experiments that are easily taken for one. In `train_at` the batch is small, so that gradient
and statistics are both noisy. With `GhostBatchNorm` the gradient comes from a whole batch, and
only the statistics come from parts of it.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import normalization as nz
from normbook.lab import ensembles, models, training
from normbook.lab.data import Split

Norm = Callable[[int], nn.Module]  # channels -> norm


class GhostBatchNorm(nz.BatchNorm):
    """BatchNorm whose training statistics come from each `size` consecutive examples alone.

    The running statistics move once a batch, to the mean over its parts. In evaluation, and where
    the batch is one part, it is BatchNorm.

    Shapes: input and output [N, C, …], N a multiple of `size` in training.

    Raises: ValueError when `size` does not divide N, and as `nz.BatchNorm`.

    Source: Hoffer, Hubara & Soudry 2017 (arXiv 1705.08741), section 4.
    """

    def __init__(self, num_features: int, size: int) -> None:
        super().__init__(num_features)
        self.size = size

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each part by its own statistics in training, else by the running ones."""
        if not self.training:
            return super().forward(input)
        if len(input) % self.size:
            raise ValueError(f"size must divide the {len(input)} examples, got {self.size}")
        parts = len(input) // self.size
        # the parts side by side as channels: BatchNorm keeps channels apart
        wide = input.unflatten(0, (parts, self.size)).transpose(0, 1).flatten(1, 2)
        mean, variance = self.running_mean.repeat(parts), self.running_var.repeat(parts)
        gain, bias = self.weight.repeat(parts), self.bias.repeat(parts)
        output = nz.batch_norm(wide, mean, variance, gain, bias, True, self.momentum, self.eps)
        with torch.no_grad():
            self.running_mean.copy_(mean.unflatten(0, (parts, -1)).mean(0))
            self.running_var.copy_(variance.unflatten(0, (parts, -1)).mean(0))
        return output.unflatten(1, (parts, -1)).transpose(0, 1).flatten(0, 1)

    def extra_repr(self) -> str:
        """Name the settings, the size of a part too."""
        return f"{super().extra_repr()}, size={self.size}"


class DigitsCNN(nn.Module):
    """Two 3 × 3 convolutions, each followed by the norm and a ReLU; then the mean over space.

    The images are 8 × 8, then 4 × 4, then 2 × 2: BatchNorm's two layers see 16 N and 4 N values a
    channel in a batch of N.

    Shapes: input [N, 1, 8, 8], output [N, 10].

    Args:
        norm: maps a number of channels to a norm; `nn.Identity` for none.
        width: channels of the first convolution; the second has twice as many.
    """

    def __init__(self, norm: Norm, width: int = 8) -> None:
        super().__init__()
        layers, before = [], 1
        for channels in (width, 2 * width):
            convolution = nn.Conv2d(before, channels, 3, stride=2, padding=1, bias=False)
            nz.kaiming_normal_(convolution.weight, nonlinearity="relu")
            layers += [convolution, norm(channels), nn.ReLU()]
            before = channels
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(before, 10)

    def forward(self, input: Tensor) -> Tensor:
        """Compute the logits of each image."""
        return self.head(self.features(input).mean((2, 3)))


def train_at(digits: Split, norm: Norm, *, seeds: Sequence[int], **options) -> list[nn.Module]:
    """Train a `DigitsCNN` for each seed, all at once; a seed draws the weights and the batches.

    `options` are those of `ensembles.train`; the optimizer is SGD unless they name another.
    """
    members = [models.build(lambda: DigitsCNN(norm), seed) for seed in seeds]
    data, options = (digits.train_inputs, digits.train_targets), {"optimizer": "sgd", **options}
    ensembles.train(members, *data, seed=list(seeds), **options)
    return members


def percent_wrong(members: Sequence[nn.Module], digits: Split) -> Tensor:
    """Return the percentage of test images that each member gets wrong in evaluation: [members]."""
    scores = [training.evaluate(m, digits.test_inputs, digits.test_targets) for m in members]
    return torch.tensor([100 * (1 - score.accuracy) for score in scores])


def by_batch_statistics(model: nn.Module, inputs: Tensor, size: int) -> Tensor:
    """Return what a model that was left in training mode makes of batches of `size` examples.

    Each `size` consecutive inputs are one batch. The model keeps its mode and its statistics.

    Shapes: inputs [n, …], n a multiple of `size`; output as the model's.
    """
    copied = copy.deepcopy(model).train()
    for parent in list(copied.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm) is nz.BatchNorm:
                ghost = GhostBatchNorm(norm.num_features, size).to(inputs)
                ghost.load_state_dict(norm.state_dict())
                setattr(parent, name, ghost)
    with torch.no_grad():
        return copied(inputs)
