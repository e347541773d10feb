"""Residual connections against their formulas, and the block against PyTorch's encoder layer."""

import pytest
import torch
from engine_helpers import assert_close, normal, refused
from torch import nn

import normalization as nz


def square(x):
    return x * x


def minus_one(x):
    return x - 1


def test_placements_by_number():
    # branch x², norm x - 1, at x = 3: every placement gives another number
    input = torch.tensor([3.0])
    assert nz.Residual(square, None, "none")(input).item() == 3 + 9
    assert nz.Residual(square, minus_one)(input).item() == 3 + 4
    assert nz.Residual(square, minus_one, "pre")(input).item() == 3 + 4
    assert nz.Residual(square, minus_one, "post")(input).item() == 3 + 9 - 1


def test_scales_by_number():
    # skip_scale belongs to the skip and scale to the branch, in every placement
    input, scales = torch.tensor([3.0]), {"skip_scale": 10.0, "scale": 0.5}
    assert nz.Residual(square, None, "none", **scales)(input).item() == 30 + 4.5
    assert nz.Residual(square, minus_one, "pre", **scales)(input).item() == 30 + 2
    assert nz.Residual(square, minus_one, "post", **scales)(input).item() == 30 + 4.5 - 1


def double(x):
    return 2 * x


def test_output_norms_by_number():
    # branch x², norm x - 1, post_norm 2x, at x = 3
    input = torch.tensor([3.0])
    sandwich = nz.Residual(square, minus_one, "sandwich", post_norm=double)
    assert sandwich(input).item() == 3 + 2 * (3 - 1) ** 2
    output = nz.Residual(square, None, "output", post_norm=double)
    assert output(input).item() == 3 + 2 * 3**2
    scales = {"skip_scale": 10.0, "scale": 0.5}
    sandwich = nz.Residual(square, minus_one, "sandwich", post_norm=double, **scales)
    assert sandwich(input).item() == 30 + 2 * (3 - 1) ** 2 / 2
    output = nz.Residual(square, None, "output", post_norm=double, **scales)
    assert output(input).item() == 30 + 3**2


def test_a_placement_needs_exactly_its_norms():
    with pytest.raises(ValueError, match="post_norm must be given with placement 'sandwich'"):
        nz.Residual(square, minus_one, "sandwich")
    with pytest.raises(ValueError, match="norm must be None with placement 'output'"):
        nz.Residual(square, minus_one, "output", post_norm=double)


@pytest.mark.parametrize(("placement", "norms"), [("sandwich", 4), ("output", 2)])
def test_a_block_makes_each_norm_it_places(placement, norms):
    block = nz.TransformerBlock(8, 2, placement=placement).double()
    found = [module for module in block.modules() if isinstance(module, nz.LayerNorm)]
    assert len({id(module) for module in found}) == len(found) == norms
    middle = input = normal(2, 5, 8)
    for residual in (block.attention, block.feed_forward):
        read = residual.norm(middle) if placement == "sandwich" else middle
        middle = middle + residual.post_norm(residual.branch(read))
    assert_close(block(input), middle)
    # the size of a write is that of its norm, whatever the branch's weights
    with torch.no_grad():
        for parameter in block.attention.branch.output.parameters():
            parameter *= 100
    write = block.attention(input) - input
    assert write.square().mean(-1).sqrt().max() < 1.001


def test_a_module_scales_the_branch():
    scale = nn.Linear(1, 1, bias=False)
    nn.init.constant_(scale.weight, 0.25)
    residual = nz.Residual(square, minus_one, "post", scale=scale, skip_scale=2)
    assert residual(torch.tensor([3.0])).item() == 6 + 9 / 4 - 1
    assert dict(residual.named_parameters()).keys() == {"scale.weight"}


def test_deepnorm_scales_the_skip():
    dim, alpha = 8, 2.5
    branch = nn.Linear(dim, dim).double()
    norm = nz.LayerNorm(dim).double()
    input = normal(4, dim)
    residual = nz.Residual(branch, norm, "post", skip_scale=alpha)
    expected = torch.nn.functional.layer_norm(alpha * input + branch(input), [dim])
    assert_close(residual(input), expected)


def test_the_skip_carries_the_gradient_and_the_input_is_left_alone():
    branch = nn.Linear(8, 8).double()
    nn.init.zeros_(branch.weight)
    leaf = normal(4, 8).requires_grad_()
    before = leaf.detach().clone()
    nz.Residual(branch, nz.LayerNorm(8).double())(leaf).sum().backward()
    assert_close(leaf.grad, torch.ones(4, 8, dtype=torch.float64))
    assert torch.equal(leaf.detach(), before)


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("activation", [torch.relu, torch.nn.functional.gelu])
def test_block_is_pytorchs_encoder_layer(placement, causal, activation):
    peer = nn.TransformerEncoderLayer(
        8,
        2,
        dim_feedforward=12,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=placement == "pre",
        dtype=torch.float64,
    )
    with torch.no_grad():
        for seed, parameter in enumerate(peer.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed) / 2)
    mine = nz.TransformerBlock(
        8, 2, 12, placement=placement, causal=causal, activation=activation
    ).double()
    mine.load_state_dict(encoder_layer_state(peer))
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    leaf = normal(3, 5, 8).requires_grad_()
    outputs = mine(leaf), peer(leaf, src_mask=mask)
    assert_close(*outputs)
    assert_close(*(torch.autograd.grad(output.sin().sum(), leaf)[0] for output in outputs))


def encoder_layer_state(peer):
    """Name the parameters of PyTorch's encoder layer as the block does."""
    attention, state = peer.self_attn, {}
    for index, name in enumerate(("query", "key", "value")):
        state[f"attention.branch.{name}.weight"] = attention.in_proj_weight.chunk(3)[index]
        state[f"attention.branch.{name}.bias"] = attention.in_proj_bias.chunk(3)[index]
    layers = {
        "attention.branch.output": attention.out_proj,
        "attention.norm": peer.norm1,
        "feed_forward.branch.up": peer.linear1,
        "feed_forward.branch.down": peer.linear2,
        "feed_forward.norm": peer.norm2,
    }
    for prefix, layer in layers.items():
        state |= {f"{prefix}.{name}": value for name, value in layer.state_dict().items()}
    return state


def test_block_passes_its_settings_on():
    block = nz.TransformerBlock(
        8, 2, norm=nz.RMSNorm, placement="post", causal=True, skip_scale=2.0, scale=0.5
    )
    for residual, kind in (
        (block.attention, nz.MultiHeadAttention),
        (block.feed_forward, nz.FeedForward),
    ):
        assert isinstance(residual.branch, kind)
        assert isinstance(residual.norm, nz.RMSNorm)
        assert (residual.placement, residual.skip_scale, residual.scale) == ("post", 2.0, 0.5)
    assert block.attention.norm is not block.feed_forward.norm
    assert block.attention.branch.causal
    assert block.attention.branch.heads == 2
    assert block.feed_forward.branch.up.out_features == 32


def test_block_without_norms():
    block = nz.TransformerBlock(8, norm=None, placement="none").double()
    input = normal(2, 5, 8)
    middle = input + block.attention.branch(input)
    assert_close(block(input), middle + block.feed_forward.branch(middle))


def test_vmap_over_stacked_blocks_and_grad():
    members = [nz.TransformerBlock(4, 2).double() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(members)
    inputs = normal(3, 5, 4)

    def run(parameters, buffers, input):
        return torch.func.functional_call(members[0], (parameters, buffers), (input,))

    outputs = torch.vmap(run)(parameters, buffers, inputs)
    assert_close(outputs, torch.stack([m(x) for m, x in zip(members, inputs, strict=True)]))
    loss = torch.func.grad(lambda p: run(p, {}, inputs[0]).sin().sum())
    gradients = loss(dict(members[0].named_parameters()))
    members[0](inputs[0]).sin().sum().backward()
    for name, parameter in members[0].named_parameters():
        assert_close(gradients[name], parameter.grad)


ONES = torch.ones(2, 3)
NORM, LINEAR = nz.LayerNorm(3), nn.Linear(3, 3)
BAD = [
    (lambda: nz.Residual(LINEAR, NORM, "middle"), ValueError, "placement .*'none'.*'middle'"),
    (lambda: nz.Residual(LINEAR, NORM, None), ValueError, "placement .*None"),
    (lambda: nz.Residual(LINEAR), ValueError, "norm must be given with placement 'pre'"),
    (lambda: nz.Residual(LINEAR, None, "post"), ValueError, "norm must be given .*'post'"),
    (lambda: nz.Residual(LINEAR, NORM, "none"), ValueError, "norm must be None .*'none'"),
    (
        lambda: nz.Residual(LINEAR, NORM, post_norm=NORM),
        ValueError,
        "post_norm must be None .*'pre'",
    ),
    (
        lambda: nz.Residual(LINEAR, NORM, "post", post_norm=NORM),
        ValueError,
        "post_norm .*'post'",
    ),
    (
        lambda: nz.Residual(LINEAR, None, "none", post_norm=NORM),
        ValueError,
        "post_norm .*'none'",
    ),
    (lambda: nz.Residual(None, NORM), TypeError, "branch must be callable, got NoneType"),
    (lambda: nz.Residual(LINEAR, 1.0), TypeError, "norm must be callable, got float"),
    (lambda: nz.Residual(LINEAR, NORM, scale="half"), TypeError, "scale .*str"),
    (lambda: nz.Residual(LINEAR, NORM, scale=float("nan")), ValueError, "scale .*nan"),
    (lambda: nz.Residual(LINEAR, NORM, skip_scale=LINEAR), TypeError, "skip_scale .*Linear"),
    (
        lambda: nz.Residual(LINEAR, NORM, skip_scale=float("inf")),
        ValueError,
        "skip_scale .*inf",
    ),
    (
        lambda: nz.Residual(nn.Linear(3, 1), NORM)(ONES),
        ValueError,
        r"shape \(2, 3\), got \(2, 1\)",
    ),
    (lambda: nz.Residual(LINEAR, NORM)(ONES.long()), TypeError, "input .*int64"),
    (lambda: nz.Residual(LINEAR, NORM)(torch.ones(2, 4)), ValueError, r"\(2, 4\)"),
    (
        lambda: nz.TransformerBlock(8, placement="none"),
        ValueError,
        "norm must be None .*'none'",
    ),
    (lambda: nz.TransformerBlock(8, norm=None), ValueError, "norm must be a callable .*'pre'"),
    (lambda: nz.TransformerBlock(8, placement="middle"), ValueError, "placement .*'middle'"),
    (lambda: nz.TransformerBlock(8, 3), ValueError, "dim .*8.*3"),
    (lambda: nz.TransformerBlock(8, norm="layer"), TypeError, "norm .*str"),
    (lambda: nz.TransformerBlock(8, scale=LINEAR), TypeError, "scale .*Linear"),
    (lambda: nz.TransformerBlock(8, hidden=0), ValueError, "hidden .*0"),
    (lambda: nz.TransformerBlock(8)(torch.ones(2, 4)), ValueError, r"\(2, 4\)"),
]
test_bad_input_is_refused = refused(BAD)
