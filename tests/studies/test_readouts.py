"""The readouts against the model's own logits and a stream that is cut off by hand."""

import pytest
import torch

import normalization as nz
from normbook.lab.models import Transformer, build
from normbook.lab.readouts import logit_lens, logit_writes

SIZE = {"dim": 8, "depth": 3, "outputs": 5, "length": 6, "vocabulary": 5, "causal": True}


def model_and_tokens(**options):
    model = build(lambda: Transformer(**SIZE | options), seed=0)
    with torch.no_grad():  # gains and biases that are not 1 and 0
        for parameter in model.final_norm.parameters():
            parameter.add_(0.1 * torch.randn(8, generator=torch.Generator().manual_seed(1)))
        model.head.bias.add_(0.3)
    return model, torch.randint(5, (4, 6), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    "norm",
    [
        "layer",
        "rms",
        lambda dim: nz.RMSNorm(dim, offset=1.0),
        lambda dim: nz.LayerNorm(dim, bias=False),
    ],
)
def test_writes_add_up_to_the_logits(norm):
    model, tokens = model_and_tokens(norm=norm)
    writes = logit_writes(model, tokens)
    assert writes.shape == (8, 4, 6, 5)
    assert torch.allclose(writes.sum(0), model(tokens), atol=1e-12)


def test_a_silent_branch_contributes_nothing():
    model, tokens = model_and_tokens()
    with torch.no_grad():
        model.blocks[1].feed_forward.branch.down.weight.zero_()
        model.blocks[1].feed_forward.branch.down.bias.zero_()
    writes = logit_writes(model, tokens)
    assert writes[4].abs().max() < 1e-12
    assert writes[3].abs().max() > 1e-3


def test_lens_reads_the_stream_at_every_depth():
    model, tokens = model_and_tokens()
    lens = logit_lens(model, tokens)
    assert lens.shape == (4, 4, 6, 5)
    assert torch.allclose(lens[-1], model(tokens))
    embedded = model.embedding(tokens) + model.positions
    assert torch.allclose(lens[0], model.head(model.final_norm(embedded)))
    assert torch.allclose(lens[1], model.head(model.final_norm(model.blocks[0](embedded))))


def test_a_model_without_a_final_norm_is_refused():
    model, tokens = model_and_tokens(norm=None, placement="none")
    with pytest.raises(TypeError, match="final norm must be"):
        logit_writes(model, tokens)
