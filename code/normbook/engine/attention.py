"""The two branches of a Transformer block: attention and feed-forward network.

Initializers act on their weights by name: `query`, `key`, `value`, `output` and `up`, `down`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from normbook.engine.checks import (
    computation_dtype,
    require_callable,
    require_choice,
    require_features,
    require_floating,
    require_like,
    require_number,
    require_parameter,
    require_positive,
    require_size,
)
from normbook.engine.layer_norms import layer_norm, rms_norm

# --- logits, weights, output ---

SCALES: dict[str, Callable[[int], float]] = {
    "1/sqrt(d)": lambda width: math.sqrt(width),
    "1/d": lambda width: width,
}
QK_NORMS = (None, "l2", "rms", "layer")


def attention_logits(
    query: Tensor,
    key: Tensor,
    causal: bool = False,
    *,
    scale: str | float | Tensor = "1/sqrt(d)",
    qk_norm: str | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    r"""Scaled dot products of queries and keys, before the softmax.

    $$a_{ij} = s\, q_i \cdot k_j, \qquad s = 1 / \sqrt{d}$$

    `scale` is "1/sqrt(d)", μP's "1/d", or s itself, as a number or a tensor of one. `qk_norm`
    normalizes every query and key first, without a gain (see `qk_normalize`). `soft_cap` bounds the
    result, $c \tanh(a / c)$. With `causal`, a position sees itself and what came before: later ones
    are minus infinity.

    Shapes: query [..., T, d], key [..., S, d]; output [..., T, S], S = T if causal.

    Raises: ValueError when shapes or devices do not fit, on an unknown scale or norm, or a soft_cap
    that is not above 0; TypeError on a dtype that is not real floating point, or not the same in
    both.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), Eq. 1; Yang et al. 2022 (arXiv 2203.03466), for
    1/d; Gemma Team 2024 (arXiv 2408.00118), for the cap.
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
    products = qk_normalize(query, qk_norm) @ qk_normalize(key, qk_norm).transpose(-2, -1)
    logits = _cap(_scale(products, scale, query.shape[-1]), soft_cap)
    return _mask_later(logits) if causal else logits


def _scale(products: Tensor, scale: str | float | Tensor, width: int) -> Tensor:
    """Multiply by the scale; for the named ones, divide by what the name says."""
    if isinstance(scale, Tensor):
        require_parameter("scale", scale, (), products)
        return (scale * products).to(products.dtype)
    if not isinstance(scale, str):
        require_number("scale", scale)
        return scale * products
    require_choice("scale", scale, SCALES)
    return products / SCALES[scale](width)


def _cap(logits: Tensor, soft_cap: float | None) -> Tensor:
    """Squash the logits into (-soft_cap, soft_cap); small ones stay as they are."""
    if soft_cap is None:
        return logits
    require_positive("soft_cap", soft_cap)
    return soft_cap * torch.tanh(logits / soft_cap)


def _mask_later(logits: Tensor) -> Tensor:
    """Let each position see itself and what came before: minus infinity for all others."""
    queries, keys = logits.shape[-2:]
    if queries != keys:
        raise ValueError(
            f"causal attention needs as many keys as queries, got {keys} keys and {queries} queries"
        )
    is_later = torch.ones(queries, keys, dtype=torch.bool, device=logits.device).triu(1)
    return logits.masked_fill(is_later, -math.inf)


def qk_normalize(
    features: Tensor, qk_norm: str | None, gain: Tensor | None = None, eps: float = 1e-6
) -> Tensor:
    r"""Normalize queries or keys over their last axis, so that the logits are bounded.

    "rms" and "layer" are `rms_norm` and `layer_norm` with a gain and no bias: with $1/\sqrt{d}$,
    $|a_{ij}| \le \lVert\gamma_q\rVert_\infty \lVert\gamma_k\rVert_\infty \sqrt{d}$. "l2" is
    $q / \lVert q \rVert$, whose products are cosines; a learned temperature multiplies them in the
    place of a gain, and a zero vector stays zero. None changes nothing.

    Shapes: features and output [..., d]; gain [d], for "rms" and "layer" only.

    Raises: ValueError on an unknown norm, a gain where there is none, another shape or negative
    eps; TypeError on a dtype the rule of `shared` excludes.

    Source: Henry et al. 2020 (arXiv 2010.04245), for "l2"; Dehghani et al. 2023 (arXiv 2302.05442),
    for "layer"; Qwen Team 2025 (arXiv 2505.09388), for "rms".
    """
    require_choice("qk_norm", qk_norm, QK_NORMS)
    require_floating("features", features)
    if qk_norm in (None, "l2") and gain is not None:
        raise ValueError(f"gain must be None with qk_norm {qk_norm!r}, got a tensor")
    if qk_norm == "rms":
        return rms_norm(features, features.shape[-1], gain, eps)
    if qk_norm == "layer":
        return layer_norm(features, features.shape[-1], gain, eps=eps)
    if qk_norm is None:
        return features
    wide = features.to(computation_dtype(features))
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return (wide / torch.where(length == 0, 1.0, length)).to(features.dtype)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    *,
    scale: str | float | Tensor = "1/sqrt(d)",
    qk_norm: str | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Average the values with weights softmax(logits); see `attention_logits` for the logits.

    Shapes: query [..., T, d], key [..., S, d], value [..., S, v]; output [..., T, v].

    Raises: as `attention_logits`; ValueError when value and key differ in anything but width.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), Eq. 1.
    """
    logits = attention_logits(query, key, causal, scale=scale, qk_norm=qk_norm, soft_cap=soft_cap)
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


# --- the two branches of a block ---


class MultiHeadAttention(nn.Module):
    r"""Self-attention: `heads` attentions side by side, each on its own dim / heads features.

    $$y = W_o\,[\mathrm{head}_1, \dots, \mathrm{head}_h],\quad
      \mathrm{head}_i = \mathrm{attention}(W_q^i x, W_k^i x, W_v^i x)$$

    `scale` and `soft_cap` are those of `attention_logits`. `qk_norm` is that of `qk_normalize`,
    over each head's features or, with `qk_norm_over="projection"`, over all dim of them before they
    are split. "rms" and "layer" learn a gain a feature, which heads share where each has its norm;
    "l2" learns one temperature in the place of `scale`, from sqrt(dim / heads) unless
    `init_temperature` is given, which makes it "rms" at the start.

    Shapes: input and output [..., T, dim].

    Raises: ValueError when dim is not a multiple of heads, the input does not end in [T, dim], a
    name is unknown, or "l2" meets a scale (or another norm an init_temperature).

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.2; for the norms see `qk_normalize`.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        causal: bool = False,
        bias: bool = True,
        *,
        scale: str | float = "1/sqrt(d)",
        qk_norm: str | None = None,
        qk_norm_over: str = "head",
        init_temperature: float | None = None,
        soft_cap: float | None = None,
    ) -> None:
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
        if soft_cap is not None:
            require_positive("soft_cap", soft_cap)
        self.soft_cap = soft_cap
        self._set_scale(scale, qk_norm, init_temperature)
        self._set_norm(qk_norm, qk_norm_over)

    def _set_scale(
        self, scale: str | float, qk_norm: str | None, init_temperature: float | None
    ) -> None:
        """Keep the scale of the logits, and for "l2" the temperature that takes its place."""
        if isinstance(scale, str):
            require_choice("scale", scale, SCALES)
        else:
            require_number("scale", scale)
        if qk_norm != "l2" and init_temperature is not None:
            raise ValueError(
                f"init_temperature must be None with qk_norm {qk_norm!r}, got {init_temperature}"
            )
        if qk_norm == "l2" and scale != "1/sqrt(d)":
            raise ValueError(f"scale must be left alone with qk_norm 'l2', got {scale!r}")
        self.scale = scale
        start = math.sqrt(self.dim / self.heads) if init_temperature is None else init_temperature
        require_number("init_temperature", start)
        self.temperature = nn.Parameter(torch.tensor(float(start))) if qk_norm == "l2" else None

    def _set_norm(self, qk_norm: str | None, qk_norm_over: str) -> None:
        """Keep how queries and keys are normalized, and make the gains."""
        require_choice("qk_norm", qk_norm, QK_NORMS)
        sizes = {"head": self.dim // self.heads, "projection": self.dim}
        require_choice("qk_norm_over", qk_norm_over, sizes)
        self.qk_norm = qk_norm
        self.qk_norm_over = qk_norm_over
        size, has_gain = sizes[qk_norm_over], qk_norm in ("rms", "layer")
        self.query_gain = nn.Parameter(torch.ones(size)) if has_gain else None
        self.key_gain = nn.Parameter(torch.ones(size)) if has_gain else None

    def forward(self, input: Tensor) -> Tensor:
        """Attend from every position of `input` to every position it may see."""
        require_features(input, self.dim, rank=2)
        query = self._normalized(self.query(input), self.query_gain)
        key = self._normalized(self.key(input), self.key_gain)
        value = self._split(self.value(input))
        heads = attention(query, key, value, self.causal, **self._logit_settings())
        return self.output(heads.transpose(-3, -2).flatten(-2))

    def logits(self, input: Tensor) -> Tensor:
        """Compute the logits alone, for probes: [..., T, dim] to [..., heads, T, T]."""
        require_features(input, self.dim, rank=2)
        query = self._normalized(self.query(input), self.query_gain)
        key = self._normalized(self.key(input), self.key_gain)
        return attention_logits(query, key, self.causal, **self._logit_settings())

    def _logit_settings(self) -> dict[str, str | float | Tensor | None]:
        """Give the scale, or the temperature in its place, and the cap."""
        scale = self.scale if self.temperature is None else self.temperature
        return {"scale": scale, "soft_cap": self.soft_cap}

    def _normalized(self, features: Tensor, gain: Tensor | None) -> Tensor:
        """Split queries or keys into heads, and normalize before or after, as asked."""
        if self.qk_norm_over == "projection":
            return self._split(qk_normalize(features, self.qk_norm, gain))
        return qk_normalize(self._split(features), self.qk_norm, gain)

    def _split(self, features: Tensor) -> Tensor:
        """[..., T, dim] to [..., heads, T, dim / heads]."""
        return features.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def extra_repr(self) -> str:
        """Name the settings that the four layers below do not show."""
        settings = f"heads={self.heads}, causal={self.causal}, scale={self.scale!r}"
        norm = f", qk_norm={self.qk_norm!r} over {self.qk_norm_over}" if self.qk_norm else ""
        return settings + norm + (f", soft_cap={self.soft_cap:g}" if self.soft_cap else "")


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
        require_callable("activation", activation)
        self.dim = dim
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.activation = activation
        self.down = nn.Linear(hidden, dim, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """Widen, apply the nonlinearity, narrow."""
        require_features(input, self.dim)
        return self.down(self.activation(self.up(input)))
