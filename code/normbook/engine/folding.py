"""Norms folded into the layers beside them: other parameters, the same function (section 11).

Every function here returns new modules and leaves those it is given as they were.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from normbook.engine.batch_norms import BatchNorm
from normbook.engine.checks import (
    computation_dtype,
    require_floating,
    require_module,
    require_number,
    require_parameter,
)
from normbook.engine.layer_norms import LayerNorm, RMSNorm
from normbook.engine.residuals import TransformerBlock
from normbook.engine.shared import mean_square

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
FOLDABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (BatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYER_NORMS = (LayerNorm, nn.LayerNorm)
RMS_NORMS = (RMSNorm, nn.RMSNorm)


def fold_batch_norm(layer: Layer, norm: nn.Module) -> Layer:
    r"""Fold an evaluation-mode BatchNorm into the layer before it.

    $$W' = s W, \qquad b' = s\,(b - \mu) + \beta, \qquad
      s = \gamma / \sqrt{\sigma^2 + \epsilon}$$

    with the running $\mu$ and $\sigma^2$; s scales each output of the layer.

    Shapes: layer with as many outputs as the norm has features.

    Raises: ValueError when the norm is in training mode, keeps no running statistics, or has
    another width; TypeError on other layers (a parametrized one: fold that first) or norms.

    Source: Jacob et al. 2018 (arXiv 1712.05877), section 3.2.
    """
    _require_kind("layer", layer, FOLDABLE)
    _require_kind("norm", norm, BATCH_NORMS)
    if norm.training:
        raise ValueError("norm must be in evaluation mode, got one in training mode")
    if norm.running_mean is None:
        raise ValueError("norm must have running statistics, got None")
    outputs = layer.weight.shape[0]
    if norm.num_features != outputs:
        raise ValueError(f"norm must have the layer's {outputs} outputs, got {norm.num_features}")
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    bias = torch.zeros_like(norm.running_mean) if layer.bias is None else layer.bias
    bias = scale * (bias - norm.running_mean)
    if norm.bias is not None:
        bias = bias + norm.bias
    rows = scale.reshape(-1, *[1] * (layer.weight.dim() - 1))
    return _with_parameters(layer, rows * layer.weight, bias)


def fold_weight_norm(layer: nn.Module) -> nn.Module:
    r"""Replace a weight-normalized layer by a plain one, whose weight is computed once.

    $$w = g\, v / \lVert v \rVert$$

    Takes layers under `WeightNorm` and under PyTorch's `parametrizations.weight_norm`.

    Raises: ValueError when weight norm of the weight is not the layer's one parametrization;
    TypeError when it is no module.

    Source: Salimans & Kingma 2016 (arXiv 1602.07868), Eq. 2.
    """
    require_module("layer", layer)
    steps = dict(layer.parametrizations) if parametrize.is_parametrized(layer) else {}
    kinds = {name: [type(step).__name__ for step in chain] for name, chain in steps.items()}
    if kinds not in ({"weight": ["WeightNorm"]}, {"weight": ["_WeightNorm"]}):
        raise ValueError(f"layer must have its weight under weight norm alone, got {kinds}")
    plain = copy.deepcopy(layer)
    # remove_parametrizations would change the class, which the copy shares with the original
    plain.__class__ = parametrize.type_before_parametrizations(layer)
    del plain.parametrizations
    plain.weight = nn.Parameter(layer.weight.detach().clone())
    return plain


def fold_norm_affine(norm: nn.Module, *linears: nn.Linear) -> tuple[nn.Module, ...]:
    r"""Fold gain and bias of a LayerNorm or RMSNorm into the linear layers that read it.

    $$W' = W\,\mathrm{diag}(\gamma), \qquad b' = b + W \beta$$

    Returns the norm without parameters, then the layers. Nothing else may read the norm's output:
    this is the norm of a Pre-LN branch, or the last one before the head.

    Shapes: norm over the last axis, of as many features as each layer has inputs.

    Raises: ValueError when there is no layer, the norm is over several axes, or of another width;
    TypeError on other norms or layers.

    Source: algebra; Ashkboos et al. 2024 (arXiv 2401.15024), section 3, uses it.
    """
    _require_readers(norm, linears)
    gain, bias = _gain(norm), getattr(norm, "bias", None)
    layers = [_read_scaled(linear, gain, bias) for linear in linears]
    shape = norm.normalized_shape
    if isinstance(norm, LAYER_NORMS):
        plain = LayerNorm(shape, norm.eps, elementwise_affine=False)
    else:
        plain = RMSNorm(shape, norm.eps, elementwise_affine=False)
    return (plain.train(norm.training), *layers)


def deferred_rms_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float | None = None
) -> Tensor:
    r"""Apply a linear layer to the RMS-normalized input, but divide after the product.

    $$y = \frac{W x}{\sqrt{\mathrm{E}[x^2] + \epsilon}} + b$$

    The division is one number a row, and goes through the product. So the product need not wait for
    it. Fold a gain into W first, with `fold_norm_affine`. `eps=None` is as in `rms_norm`.

    The product of half-precision inputs is rounded, and may overflow, before it is divided.

    Shapes: input [..., in]; weight [out, in]; bias [out]; output [..., out].

    Raises: ValueError on shapes that do not fit or negative eps; TypeError on a dtype that the rule
    of `shared` excludes.

    Source: Graef et al. 2024 (arXiv 2407.09577), Fig. 1.
    """
    require_floating("input", input)
    require_floating("weight", weight)
    if input.dim() < 1 or weight.dim() != 2 or weight.shape[1] != input.shape[-1]:
        raise ValueError(
            "weight must be [out, in] with in the input's last axis, "
            f"got {tuple(weight.shape)} for an input {tuple(input.shape)}"
        )
    require_parameter("weight", weight, weight.shape, input)
    require_parameter("bias", bias, weight.shape[:1], input)
    dtype = computation_dtype(input)
    eps = torch.finfo(dtype).eps if eps is None else eps
    require_number("eps", eps, low=0)
    product = F.linear(input, weight.to(input.dtype)).to(dtype)
    output = product * torch.rsqrt(mean_square(input.to(dtype), (-1,)) + eps)
    return (output if bias is None else output + bias.to(dtype)).to(input.dtype)


def center_writes(
    model: nn.Module,
    embeddings: Sequence[str] = ("embedding", "positions"),
    final: tuple[str, str] = ("final_norm", "head"),
) -> nn.Module:
    """Turn a Pre-LN Transformer into a Pre-RMSNorm one that computes the same function.

    LayerNorm does not see the mean of the stream over its features. Taking that mean out of
    everything that writes to the stream leaves the output as it was, and on a stream of mean 0
    LayerNorm is RMSNorm; its bias goes into the layers that read it.

    `model.blocks` holds `TransformerBlock`s with placement "pre", LayerNorms and scales that are
    numbers. `embeddings` names what else writes to the stream, each a parameter [..., dim], an
    `nn.Embedding` or an `nn.Linear`; all of it must be named. `final` names the LayerNorm behind
    the blocks and the `nn.Linear` that alone reads it.

    Shapes: as the model has them.

    Raises: ValueError on another placement, or a name that the model lacks; TypeError on modules
    of another kind.

    Source: Jiang et al. 2023 (arXiv 2305.14858), section 3; Ashkboos et al. 2024 (arXiv
    2401.15024), section 3.
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "blocks"):
        raise TypeError(f"model must be a module with blocks, got {type(model).__name__}")
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name in embeddings:
            _center(name, _member(model, name))
        for block in model.blocks:
            _center_block(block)
    norm, head = (_member(model, name) for name in final)
    for name, value in zip(final, _to_rms(norm, [head]), strict=True):
        setattr(model, name, value)
    return model


def _center_block(block: nn.Module) -> None:
    """Center both writes of a block in place, and make its norms RMSNorms."""
    _require_kind("block", block, (TransformerBlock,))
    readers = {"attention": ("query", "key", "value"), "feed_forward": ("up",)}
    writers = {"attention": "output", "feed_forward": "down"}
    for part, names in readers.items():
        residual = getattr(block, part)
        if residual.placement != "pre":
            raise ValueError(f"placement must be 'pre', got {residual.placement!r}")
        if isinstance(residual.scale, nn.Module):
            raise TypeError(f"scale must be a number, got {type(residual.scale).__name__}")
        branch = residual.branch
        residual.norm, *layers = _to_rms(residual.norm, [getattr(branch, name) for name in names])
        for name, layer in zip(names, layers, strict=True):
            setattr(branch, name, layer)
        _center(writers[part], getattr(branch, writers[part]))


def _to_rms(norm: nn.Module, linears: Sequence[nn.Linear]) -> list[nn.Module]:
    """Return the RMSNorm of a LayerNorm's gain, and the layers with its bias folded in."""
    _require_kind("norm", norm, LAYER_NORMS)
    _require_readers(norm, linears)
    rms = RMSNorm(norm.normalized_shape, norm.eps, norm.weight is not None)
    if norm.weight is not None:
        rms.weight = copy.deepcopy(norm.weight)
    return [rms.train(norm.training), *(_read_scaled(layer, None, norm.bias) for layer in linears)]


def _center(name: str, writer: nn.Module | Tensor) -> None:
    """Take the mean over the features out of what a layer or a table writes, in place."""
    if isinstance(writer, nn.Linear):
        writer.weight -= writer.weight.mean(0, keepdim=True)
        if writer.bias is not None:
            writer.bias -= writer.bias.mean()
        return
    if isinstance(writer, nn.Embedding):
        writer = writer.weight
    if not isinstance(writer, Tensor):
        raise TypeError(
            f"{name} must be a parameter, an nn.Embedding or an nn.Linear, "
            f"got {type(writer).__name__}"
        )
    writer -= writer.mean(-1, keepdim=True)


def _member(model: nn.Module, name: str) -> nn.Module | Tensor:
    """Look up a part of the model by name."""
    if not hasattr(model, name):
        raise ValueError(f"model must have a part named {name!r}, got {type(model).__name__}")
    return getattr(model, name)


def _gain(norm: nn.Module) -> Tensor | None:
    """Return what a norm multiplies by, its offset included."""
    return None if norm.weight is None else norm.weight + getattr(norm, "offset", 0.0)


def _read_scaled(linear: nn.Linear, gain: Tensor | None, bias: Tensor | None) -> nn.Linear:
    """Return the layer that computes linear(gain * x + bias) from x."""
    weight = linear.weight if gain is None else linear.weight * gain
    moved = linear.bias
    if bias is not None:
        moved = linear.weight @ bias if moved is None else moved + linear.weight @ bias
    return _with_parameters(linear, weight, moved)


def _with_parameters(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return a copy of the layer with this weight and bias."""
    new = copy.deepcopy(layer)
    new.weight = nn.Parameter(weight.detach().clone(), requires_grad=layer.weight.requires_grad)
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone(), requires_grad=layer.weight.requires_grad)
    return new


def _require_readers(norm: nn.Module, linears: Sequence[nn.Module]) -> None:
    """Raise unless the norm is over the last axis, and the layers can read it."""
    _require_kind("norm", norm, (*LAYER_NORMS, *RMS_NORMS))
    if not linears:
        raise ValueError("linears must hold at least one layer, got none")
    shape = tuple(norm.normalized_shape)
    if len(shape) != 1:
        raise ValueError(f"norm must be over the last axis alone, got normalized_shape {shape}")
    for linear in linears:
        _require_kind("linear", linear, (nn.Linear,))
        if linear.in_features != shape[0]:
            raise ValueError(
                f"linear must have the norm's {shape[0]} features as inputs, "
                f"got {linear.in_features}"
            )


def _require_kind(name: str, module: nn.Module, kinds: tuple[type, ...]) -> None:
    """Raise unless the module is of one of these kinds exactly; a subclass may differ."""
    if type(module) not in kinds:
        known = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be one of {known}, got {type(module).__name__}")
