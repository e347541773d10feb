"""The two branches of a Transformer block: attention and feed-forward network.

Initializers act on their weights by name: `query`, `key`, `value`, `output` and `up`, `down`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from normbook.engine.checks import require_floating, require_like, require_size


def attention_logits(query: Tensor, key: Tensor, causal: bool = False) -> Tensor:
    r"""Scaled dot products of queries and keys, before the softmax.

    $$a_{ij} = q_i \cdot k_j / \sqrt{d}$$

    With `causal`, a position sees itself and what came before: later ones are minus infinity.

    Shapes: query [..., T, d], key [..., S, d]; output [..., T, S], S = T if causal.

    Raises: ValueError when shapes or devices do not fit; TypeError on a dtype that is not real
    floating point, or not the same in both.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), Eq. 1.
    """
    require_floating("query", query)
    require_like("key", key, query)
    if query.dim() < 2 or key.dim() < 2 or query.shape[:-2] != key.shape[:-2]:
        raise ValueError(
            "query and key must be [..., T, d] and [..., S, d] with the same leading axes, "
            f"got {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"key must have the query's width {query.shape[-1]}, got {key.shape[-1]}")
    logits = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if not causal:
        return logits
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(
            "causal attention needs as many keys as queries, "
            f"got {key.shape[-2]} keys and {query.shape[-2]} queries"
        )
    is_later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
    return logits.masked_fill(is_later, -math.inf)


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    """Average the values with weights softmax(logits); see `attention_logits` for the logits.

    Shapes: query [..., T, d], key [..., S, d], value [..., S, v]; output [..., T, v].

    Raises: as `attention_logits`; ValueError when value and key differ in anything but width.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), Eq. 1.
    """
    logits = attention_logits(query, key, causal)
    require_like("value", value, key)
    if value.shape[:-1] != key.shape[:-1]:
        raise ValueError(
            f"value must have the key's shape but for the width, got {tuple(value.shape)} "
            f"beside {tuple(key.shape)}"
        )
    return torch.softmax(logits, dim=-1) @ value


def attention_entropy(logits: Tensor) -> Tensor:
    r"""Measure each row's entropy in nats: log S if uniform, 0 if one key takes all.

    $$H_i = -\sum_j p_{ij} \log p_{ij}, \qquad p_i = \mathrm{softmax}(a_i)$$

    Shapes: logits [..., T, S]; output [..., T]. Masked entries (minus infinity) count nothing.

    Raises: ValueError on a tensor without axes; TypeError on a dtype that is not real floating
    point.

    Source: Zhai et al. 2023 (arXiv 2303.06296), section 3.
    """
    require_floating("logits", logits)
    if logits.dim() < 1:
        raise ValueError("logits must have at least one axis, got a scalar")
    log_weights = torch.log_softmax(logits, dim=-1)
    weights = log_weights.exp()
    # 0 * log 0 is 0 here; left to itself it is nan, in value and gradient
    return -(weights * log_weights.masked_fill(weights == 0, 0.0)).sum(-1)


class MultiHeadAttention(nn.Module):
    r"""Self-attention: `heads` attentions side by side, each on its own dim / heads features.

    $$y = W_o\,[\mathrm{head}_1, \dots, \mathrm{head}_h],\quad
      \mathrm{head}_i = \mathrm{attention}(W_q^i x, W_k^i x, W_v^i x)$$

    Shapes: input and output [..., T, dim].

    Raises: ValueError when dim is not a multiple of heads, or the input does not end in [T, dim].

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.2.
    """

    def __init__(self, dim: int, heads: int = 1, causal: bool = False, bias: bool = True) -> None:
        super().__init__()
        require_size("dim", dim)
        require_size("heads", heads)
        if dim % heads:
            raise ValueError(f"dim must be a multiple of heads, got dim={dim} and heads={heads}")
        self.dim = dim
        self.heads = heads
        self.causal = causal
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """Attend from every position of `input` to every position it may see."""
        _require_features(input, self.dim, rank=2)
        query, key, value = (
            self._split(layer(input)) for layer in (self.query, self.key, self.value)
        )
        heads = attention(query, key, value, self.causal)
        return self.output(heads.transpose(-3, -2).flatten(-2))

    def logits(self, input: Tensor) -> Tensor:
        """Compute the logits alone, for probes: [..., T, dim] to [..., heads, T, T]."""
        _require_features(input, self.dim, rank=2)
        return attention_logits(
            self._split(self.query(input)), self._split(self.key(input)), self.causal
        )

    def _split(self, features: Tensor) -> Tensor:
        """[..., T, dim] to [..., heads, T, dim / heads]."""
        return features.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def extra_repr(self) -> str:
        """Name the settings that the four layers below do not show."""
        return f"heads={self.heads}, causal={self.causal}"


class FeedForward(nn.Module):
    r"""Two linear layers with a nonlinearity between, at each position alone.

    $$y = W_\mathrm{down}\, \phi(W_\mathrm{up}\, x)$$

    Shapes: input and output [..., dim]; in between [..., hidden], hidden = 4 dim unless given.

    Raises: ValueError when the input does not end in dim; TypeError when activation cannot be
    called.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), Eq. 2.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        activation: Callable[[Tensor], Tensor] = torch.relu,
        bias: bool = True,
    ) -> None:
        super().__init__()
        hidden = 4 * dim if hidden is None else hidden
        require_size("dim", dim)
        require_size("hidden", hidden)
        if not callable(activation):
            raise TypeError(f"activation must be callable, got {type(activation).__name__}")
        self.dim = dim
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.activation = activation
        self.down = nn.Linear(hidden, dim, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """Widen, apply the nonlinearity, narrow."""
        _require_features(input, self.dim, rank=1)
        return self.down(self.activation(self.up(input)))


def _require_features(input: Tensor, dim: int, rank: int) -> None:
    """Raise unless `input` is floating point, has `rank` axes or more and `dim` features."""
    require_floating("input", input)
    if input.dim() < rank or input.shape[-1] != dim:
        expected = f"[..., T, {dim}]" if rank == 2 else f"[..., {dim}]"
        raise ValueError(f"input must have shape {expected}, got {tuple(input.shape)}")
