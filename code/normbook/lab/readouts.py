"""What the residual stream says: each write's share of the logits, and the logits at every depth.

For `models.Transformer` with a final norm (LayerNorm or RMSNorm) and no pooling. Results are CPU
tensors.
"""

import torch
from torch import Tensor

import normalization as nz
from normbook.lab.models import Transformer
from normbook.lab.probes import residual_stream


def logit_lens(model: Transformer, inputs: Tensor, at: str = "blocks") -> Tensor:
    """Read the stream at every depth through the final norm and the head: [depths + 1, …, classes].

    Places as in `probes.residual_stream`; the last entry is the model's own output.
    """
    with torch.no_grad():
        stream = residual_stream(model, inputs, at).to(model.head.weight)
        return model.head(model.final_norm(stream)).cpu()


def logit_writes(model: Transformer, inputs: Tensor) -> Tensor:
    """Split the logits into what each write contributes: [2 blocks + 2, …, classes].

    Entry 0 is the embedding's part, then two a block (attention, feed-forward), and last what does
    not depend on the stream: the biases of norm and head. Each part is what the linear head sees of
    a write after the final norm has divided it by the size of the *whole* stream; so they add up to
    the logits.

    Raises: TypeError when the final norm is neither LayerNorm nor RMSNorm.
    """
    norm = model.final_norm
    if not isinstance(norm, nz.LayerNorm | nz.RMSNorm):
        raise TypeError(f"final norm must be LayerNorm or RMSNorm, got {type(norm).__name__}")
    with torch.no_grad():
        stream = residual_stream(model, inputs, "sublayers").to(model.head.weight)
        parts = torch.cat([stream[:1], stream.diff(dim=0)])
        if isinstance(norm, nz.LayerNorm):
            parts = parts - parts.mean(-1, keepdim=True)
        whole = parts.sum(0)
        eps = torch.finfo(whole.dtype).eps if norm.eps is None else norm.eps
        size = (whole.square().mean(-1, keepdim=True) + eps).sqrt()
        gain = norm.weight + getattr(norm, "offset", 0.0)
        writes = (gain * parts / size) @ model.head.weight.T
        constant = model.head.bias + 0.0
        if getattr(norm, "bias", None) is not None:
            constant = constant + model.head.weight @ norm.bias
        return torch.cat([writes, constant.expand_as(writes[:1])]).cpu()
