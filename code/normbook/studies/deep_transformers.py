"""Deep Transformers of one architecture, a whole row of seeds at once.

`models.Transformer` is built block by block and run seed by seed, which is too slow at hundreds of
blocks. A `DeepTransformers` holds the same network with every parameter stacked: one tensor for all
blocks and seeds. The placements are the engine's own formulas; that the rest computes what the
engine computes is tested.
"""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import normalization as nz
from normbook.engine.checks import require_choice
from normbook.lab.session import change_weights_, pick_device
from normbook.lab.training import batch_indices, descend

Branch = Callable[[Tensor, list], Tensor]

QUERY, KEY, VALUE, OUTPUT, UP, DOWN = range(6)
VOCABULARY, LENGTH = 8, 8  # symbols, and positions of a sequence
KNOWN_METHODS = ("deepnorm", *(name for name in nz.PLACEMENTS if name != "none"))


class DeepTransformers(nn.Module):
    """Causal language models, one a seed: embedding, positions, blocks, final norm, head.

    A block is one head of attention and a feed-forward network of hidden width `dim`, each in an
    `nz.Residual`. Matrices are Xavier's, biases 0, the embedding N(0, 1), positions N(0, 0.02²).
    "deepnorm" is placement "post" with the α and β of `nz.deepnorm_constants` for a decoder alone.
    Only placements that leave the stream unnormalized get a final norm.

    The parameters, S seeds and L blocks: `matrices` [L, 6, S, d, d] and `biases` [L, 6, S, 1, d] in
    the order of the constants above; `norms` [L, 2, k, 2, S, 1, d], for each of a block's two
    writes the k norms of the placement, gain and bias; `ends`, what stands outside of the blocks.

    `method` is a placement of `nz.Residual` that has norms, or "deepnorm"; another raises
    ValueError. `scale` multiplies every matrix in the blocks.

    Shapes: input [n, T] of symbols; output [S, n, T, VOCABULARY].
    """

    def __init__(
        self, method: str, depth: int, seeds: int = 5, *, dim: int = 16, scale: float = 1.0
    ) -> None:
        super().__init__()
        require_choice("method", method, KNOWN_METHODS)
        self.placement = "post" if method == "deepnorm" else method
        self.skip_scale, beta = 1.0, 1.0
        if method == "deepnorm":
            self.skip_scale, beta = nz.deepnorm_constants(0, depth)[2:]
        generator = torch.Generator().manual_seed(depth)

        def normal(std: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(std * torch.randn(*shape, generator=generator, dtype=torch.float64))

        gains = torch.full((6, 1, 1, 1), scale * beta, dtype=torch.float64)
        gains[[QUERY, KEY]] = scale
        matrices = normal(1 / math.sqrt(dim), depth, 6, seeds, dim, dim)
        self.matrices = nn.Parameter(gains * matrices.detach())
        self.biases = nn.Parameter(torch.zeros(depth, 6, seeds, 1, dim, dtype=torch.float64))
        kinds = len(nz.PLACEMENTS[self.placement].norms)
        self.norms = nn.Parameter(_identity_norms(depth, 2, kinds, seeds=seeds, dim=dim))
        ends = {
            "embedding": normal(1.0, seeds, VOCABULARY, dim),
            "positions": normal(0.02, seeds, 1, LENGTH, dim),
            "head": normal(math.sqrt(2 / (dim + VOCABULARY)), seeds, dim, VOCABULARY),
            "head_bias": torch.zeros(seeds, 1, VOCABULARY, dtype=torch.float64),
        }
        self.ends = nn.ParameterDict(ends)
        if self.placement != "post":
            self.ends["norm"] = nn.Parameter(_identity_norms(seeds=seeds, dim=dim))
        change_weights_(self.parameters())
        self.to(pick_device())

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the logits of every position."""
        x = self.stream(tokens)[-1]
        if self.placement != "post":
            x = _affine_norm(x, self.ends["norm"])
        logits = torch.baddbmm(self.ends["head_bias"], x.flatten(1, 2), self.ends["head"])
        return logits.unflatten(1, tokens.shape)

    def stream(self, tokens: Tensor) -> list[Tensor]:
        """Return the stream before the first write and after each: 2L + 1 of [S, n, T, d]."""
        positions = self.ends["positions"][:, :, : tokens.shape[1]]
        stream = [self.ends["embedding"][:, tokens] + positions]
        layers = zip(self.matrices.unbind(), self.biases.unbind(), self.norms.unbind(), strict=True)
        for matrices, biases, norms in layers:
            linear = list(zip(matrices.unbind(), biases.unbind(), strict=True))
            for branch, own in ((_attend, norms[0]), (_feed_forward, norms[1])):
                stream.append(self._write(stream[-1], branch, linear, own))
        return stream

    def _write(self, x: Tensor, branch: Branch, linear: list, norms: Tensor) -> Tensor:
        """Apply one residual to x, by the engine's formula for its placement."""
        names, formula = nz.PLACEMENTS[self.placement]
        placed = [partial(_affine_norm, own=own) for own in norms.unbind()]
        residual = SimpleNamespace(
            branch=partial(branch, linear=linear),
            add=lambda skip, write: torch.add(write, skip, alpha=self.skip_scale),
            **dict(zip(names, placed, strict=True)),
        )
        return formula(residual, x)


def _identity_norms(*shape: int, seeds: int, dim: int) -> Tensor:
    """Make gains of 1 and biases of 0: [*shape, 2, seeds, 1, dim]."""
    norms = torch.zeros(*shape, 2, seeds, 1, dim, dtype=torch.float64)
    norms.select(len(shape), 0).fill_(1)
    return norms


def _affine_norm(x: Tensor, own: Tensor) -> Tensor:
    """LayerNorm of x [S, n, T, d] with each seed's gain and bias: own [2, S, 1, d]."""
    gain, bias = own.unsqueeze(2).unbind()
    return torch.addcmul(bias, nn.functional.layer_norm(x, x.shape[-1:]), gain)


def _linear(x: Tensor, weight_and_bias: tuple[Tensor, Tensor]) -> Tensor:
    """Apply each seed's matrix: x [S, n, T, d], weight [S, d, d], bias [S, 1, d]."""
    weight, bias = weight_and_bias
    return torch.baddbmm(bias, x.flatten(1, 2), weight).unflatten(1, x.shape[1:3])


def _attend(x: Tensor, linear: list) -> Tensor:
    """Causal attention with one head: x [S, n, T, d]."""
    query, key, value = (_linear(x, linear[part]) for part in (QUERY, KEY, VALUE))
    later = torch.full((x.shape[2], x.shape[2]), -math.inf, device=x.device).triu(1)
    logits = torch.add(later, query @ key.mT, alpha=1 / math.sqrt(x.shape[-1]))
    return _linear(logits.softmax(-1) @ value, linear[OUTPUT])


def _feed_forward(x: Tensor, linear: list) -> Tensor:
    """Feed-forward network with a ReLU: x [S, n, T, d]."""
    return _linear(_linear(x, linear[UP]).relu(), linear[DOWN])


# --- what is done with them ---


def losses_of(stack: DeepTransformers, tokens: Tensor) -> Tensor:
    """Each seed's cross-entropy in nats, of every next symbol in tokens [n, T + 1]: [S]."""
    log = stack(tokens[:, :-1]).log_softmax(-1)
    targets = tokens[None, :, 1:, None].expand(len(log), -1, -1, 1)
    return -log.gather(-1, targets).mean((1, 2, 3))


# gradient -> what the first step subtracts, at rate 1. Adam's two averages, each divided by its
# share of the sum, are then the gradient and its square.
FIRST_STEPS = {"sgd": lambda g: g, "adam": lambda g: g / (g.abs() + 1e-8)}


def update_sizes(
    stack: DeepTransformers, tokens: Tensor, rate: float, parts: dict[str, tuple[str, ...]]
) -> dict[tuple[str, str], Tensor]:
    """Measure how far one step moves the logits, over the rate: [S] for each optimizer and part.

    The distance is the root of the mean square over all logits. `parts` names groups of parameters
    by how their names begin; for each of them only that group takes the step. The keys of the
    result are (optimizer, part). The stack is left as it was.

    Source: Wang et al. 2022 (arXiv 2203.00555), section 3.
    """
    named, sizes = dict(stack.named_parameters()), {}
    # no seed's parameters enter another's loss: the gradient of the sum holds them all
    found = torch.autograd.grad(losses_of(stack, tokens).sum(), list(named.values()))
    slopes = dict(zip(named, found, strict=True))
    with torch.no_grad():
        before = stack(tokens[:, :-1])
        for part, names in parts.items():
            moved = {name: value for name, value in named.items() if name.startswith(names)}
            kept = {name: value.clone() for name, value in moved.items()}
            for optimizer, first_step in FIRST_STEPS.items():
                for name, value in moved.items():
                    value.sub_(rate * first_step(slopes[name]))
                change = stack(tokens[:, :-1]) - before
                sizes[optimizer, part] = change.square().mean((1, 2, 3)).sqrt().cpu() / rate
                for name, value in moved.items():
                    value.copy_(kept[name])
    return sizes


def train(
    stack: DeepTransformers, corpus: Tensor, *, steps: int, rate: float, batch_size: int, watch=None
) -> tuple[Tensor, list]:
    """Train all seeds with Adam on the same batches: losses [S, steps], and what `watch` returned.

    `watch(stack)` is called before each step. corpus [examples, T + 1].
    """
    chosen = batch_indices(len(corpus), batch_size, steps, seed=0)
    watched = []

    def losses_at(step: int) -> Tensor:
        if watch is not None:
            watched.append(watch(stack))
        losses = losses_of(stack, corpus[chosen[step]])
        stack.zero_grad()
        losses.sum().backward()
        return losses.detach()

    adam = torch.optim.Adam(stack.parameters(), lr=rate, fused=True)
    return descend(adam, losses_at, steps=steps).losses, watched
