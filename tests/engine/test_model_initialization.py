"""Initializers of whole models: which matrix gets which standard deviation, and what that buys."""

import math
from functools import partial

import pytest
import torch
from engine_helpers import assert_functional_gradients, refused
from engine_helpers import normal as draw
from torch import nn

import normalization as nz

normal = partial(draw, seed=1)  # not the seed of the weights

DIM, HIDDEN, BLOCKS, VOCABULARY = 64, 128, 3, 50
MATRICES = ("query", "key", "value", "output", "up", "down")


class Model(nn.Module):
    """Embedding, positions, blocks, head."""

    def __init__(self, blocks=BLOCKS, placement="pre", **options):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM, padding_idx=0)
        self.positions = nn.Parameter(torch.full((9, DIM), 0.5))
        norm = None if placement == "none" else nz.LayerNorm
        self.blocks = nn.Sequential(
            *(
                nz.TransformerBlock(DIM, 4, HIDDEN, placement=placement, norm=norm, **options)
                for _ in range(blocks)
            )
        )
        self.head = nn.Linear(DIM, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions[: tokens.shape[-1]]
        return self.head(self.blocks(x))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_model(**options):
    torch.manual_seed(0)
    return Model(**options).double()


def std(tensor):
    return tensor.square().mean().sqrt().item()


def matrices(model):
    """The matrices of all blocks together by name."""
    found = {}
    for block in model.blocks:
        branches = {**dict(block.attention.branch.named_children())}
        branches |= dict(block.feed_forward.branch.named_children())
        for name in MATRICES:
            found.setdefault(name, []).append(branches[name])
    return found


def stds(model):
    """The standard deviation of each kind of matrix, from ≥ 12 288 entries: within 5 %, at 7 σ."""
    return {
        name: std(torch.stack([layer.weight for layer in layers]))
        for name, layers in matrices(model).items()
    }


def biases(model):
    return [layer.bias for layer in model.modules() if isinstance(layer, nn.Linear)]


def close(value):
    return pytest.approx(value, rel=0.05)


# --- what all of them share ---

INITIALIZERS = {
    "gpt2_init_": lambda model, generator: nz.gpt2_init_(model, generator=generator),
    "deepnorm_init_": lambda model, generator: nz.deepnorm_init_(model, 0.5, generator),
    "t_fixup_init_": lambda model, generator: nz.t_fixup_init_(model, generator=generator),
    "lsuv_": lambda model, generator: nz.lsuv_(model, TOKENS, generator=generator),
}
TOKENS = torch.randint(VOCABULARY, (6, 9), generator=seeded())


@pytest.mark.parametrize("name", INITIALIZERS)
def test_the_generator_decides_and_the_rest_is_left_alone(name):
    initialize = INITIALIZERS[name]
    first, second, third = (make_model() for _ in range(3))
    state = torch.get_rng_state()
    assert initialize(first, seeded(1)) is first
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    initialize(second, seeded(1))
    initialize(third, seeded(2))
    for mine, same in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, same)
    assert not torch.equal(
        first.blocks[0].attention.branch.value.weight, matrices(third)["value"][0].weight
    )
    assert (first.positions == 0.5).all()
    assert all(
        norm.weight.eq(1).all() for norm in first.modules() if isinstance(norm, nz.LayerNorm)
    )
    assert all(p.requires_grad and p.is_leaf and p.grad is None for p in first.parameters())


# --- gpt2_init_ ---


def test_gpt2_shrinks_the_two_right_matrices():
    model = nz.gpt2_init_(make_model(), generator=seeded())
    expected = dict.fromkeys(MATRICES, 0.02)
    expected["output"] = expected["down"] = 0.02 / math.sqrt(2 * BLOCKS)
    assert stds(model) == {name: close(value) for name, value in expected.items()}
    assert std(model.head.weight) == close(0.02)
    assert std(model.embedding.weight[1:]) == close(0.02)
    assert model.embedding.weight[0].eq(0).all()  # the padding symbol
    assert all(bias.eq(0).all() for bias in biases(model))


@pytest.mark.parametrize("blocks", [1, 12])
def test_gpt2_counts_two_writes_a_block(blocks):
    model = nz.gpt2_init_(make_model(blocks=blocks), std=0.5, generator=seeded())
    assert std(matrices(model)["down"][0].weight) == close(0.5 / math.sqrt(2 * blocks))


def test_gpt2_counts_the_branches_there_are():
    # attention alone, four times: N residual layers are N writes
    model = nn.Sequential(
        *(nz.Residual(nz.MultiHeadAttention(DIM), nn.Identity()) for _ in range(4))
    )
    nz.gpt2_init_(model, generator=seeded())
    assert std(torch.stack([r.branch.output.weight for r in model])) == close(0.02 / 2)


# --- deepnorm_init_ ---


def test_deepnorm_leaves_query_and_key_at_gain_one():
    model = make_model(placement="post")
    embedding, head = model.embedding.weight.clone(), model.head.weight.clone()
    nz.deepnorm_init_(model, (8 * 12) ** -0.25, generator=seeded())
    square, narrow = math.sqrt(1 / DIM), math.sqrt(2 / (DIM + HIDDEN))
    beta = 0.31947  # published for 12 layers: (8 · 12)^(-1/4)
    expected = {"query": square, "key": square, "value": beta * square, "output": beta * square}
    expected |= {"up": beta * narrow, "down": beta * narrow}
    assert stds(model) == {name: close(value) for name, value in expected.items()}
    assert torch.equal(model.embedding.weight, embedding)
    assert torch.equal(model.head.weight, head)
    inside = [layer.bias for layers in matrices(model).values() for layer in layers]
    assert all(bias.eq(0).all() for bias in inside)


# --- t_fixup_init_ ---


@pytest.mark.parametrize(
    ("stack", "blocks", "gain"),
    [
        # by hand: 0.67 · 6^(-1/4), 0.67 · 1, 54^(-1/4)
        *(("encoder", 6, 0.428098), ("encoder", 1, 0.67), ("decoder", 6, 0.368894)),
    ],
)
def test_t_fixup_gains(stack, blocks, gain):
    model = nz.t_fixup_init_(make_model(blocks=blocks, placement="none"), stack, seeded())
    square, narrow = math.sqrt(1 / DIM), math.sqrt(2 / (DIM + HIDDEN))
    expected = {"query": square, "key": square, "value": gain * square, "output": gain * square}
    expected |= {"up": gain * narrow, "down": gain * narrow}
    assert stds(model) == {name: close(value) for name, value in expected.items()}
    # the embedding takes the decoder's factor in both stacks
    assert std(model.embedding.weight[1:]) == close((9 * blocks) ** -0.25 / math.sqrt(DIM))
    assert std(model.head.weight) == close(math.sqrt(2 / (DIM + VOCABULARY)))
    assert all(bias.eq(0).all() for bias in biases(model))


def test_t_fixup_factors_to_rounding():
    models = [
        nz.t_fixup_init_(make_model(blocks=6, placement="none"), stack, seeded())
        for stack in ("encoder", "decoder")
    ]
    encoder, decoder = (matrices(model)["value"][0].weight for model in models)
    # the same draws, so the factors' ratio: 0.67 · 6^(-1/4) over 54^(-1/4), that is 0.67 · √3
    torch.testing.assert_close(encoder / decoder, torch.full_like(encoder, 0.67 * 3**0.5))


# --- lsuv_ ---


def outputs_of(model, inputs):
    """Every linear or convolution layer's output in the order of the calls, by forward hooks."""
    found = []
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    hooks = [m.register_forward_hook(lambda m, x, y: found.append(y)) for m in layers]
    with torch.no_grad():
        model(inputs)
    for hook in hooks:
        hook.remove()
    return found


def deep_net(depth=30, width=32, activation=nn.ReLU):
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), activation())]
    return nn.Sequential(*layers, nn.Linear(width, 5)).double()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU])
def test_lsuv_gives_every_layer_unit_variance(activation):
    model, inputs = deep_net(activation=activation), 3 * normal(200, 32) + 1
    nz.lsuv_(model, inputs, tolerance=0.0, generator=seeded())
    variances = [y.var(correction=0).item() for y in outputs_of(model, inputs)]
    assert variances == pytest.approx([1.0] * 31, abs=1e-12)
    assert all(bias.eq(0).all() for bias in biases(model))


def test_lsuv_scales_orthogonal_matrices():
    model = nz.lsuv_(deep_net(), normal(200, 32), generator=seeded())
    for layer in model:
        if isinstance(layer, nn.Linear):
            singular = torch.linalg.svdvals(layer.weight)
            torch.testing.assert_close(singular, singular[0].expand_as(singular))


def test_lsuv_follows_the_order_of_the_calls_not_of_the_attributes():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.second = nn.Linear(8, 8, dtype=torch.float64)
            self.first = nn.Linear(8, 8, dtype=torch.float64)

        def forward(self, input):
            return self.second(torch.relu(self.first(input)))

    model, inputs = Backwards(), 5 * normal(300, 8)
    nz.lsuv_(model, inputs, tolerance=0.0)
    variances = [y.var(correction=0).item() for y in outputs_of(model, inputs)]
    assert variances == pytest.approx([1.0, 1.0])


def test_lsuv_of_convolutions_and_attention():
    images = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    ).double()
    for model, inputs in ((images, 7 * normal(20, 3, 6, 6)), (make_model(), TOKENS)):
        nz.lsuv_(model, inputs, tolerance=0.0, generator=seeded())
        variances = [y.var(correction=0).item() for y in outputs_of(model, inputs)]
        assert variances == pytest.approx([1.0] * len(variances), abs=1e-9)


def test_lsuv_keeps_what_is_within_tolerance():
    # orthonormal weights on white data give variance 1 ± 0.05: nothing to do, unless asked for more
    inputs = normal(200, 32)
    model = nz.lsuv_(nn.Sequential(nn.Linear(32, 32)).double(), inputs, generator=seeded())
    reference = nz.orthogonal_(torch.empty(32, 32, dtype=torch.float64), generator=seeded())
    assert torch.equal(model[0].weight, reference)
    nz.lsuv_(model, inputs, tolerance=0.0, generator=seeded())
    assert not torch.equal(model[0].weight, reference)
    torch.testing.assert_close(model[0].weight, reference, rtol=0.05, atol=0)


def test_lsuv_scales_a_shared_layer_once_and_takes_its_hooks_away():
    shared = nn.Linear(8, 8, dtype=torch.float64)
    model, inputs = nn.Sequential(shared, nn.ReLU(), shared), 4 * normal(100, 8)
    nz.lsuv_(model, inputs, tolerance=0.0)
    first, second = (y.var(correction=0).item() for y in outputs_of(model, inputs))
    assert first == pytest.approx(1.0)
    assert second < 0.9
    assert not shared._forward_hooks


def test_lsuv_takes_its_hooks_away_after_an_error():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    with pytest.raises(ValueError, match=r"outputs of 0 .*variance, got 0"):
        nz.lsuv_(model, torch.zeros(5, 8))
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(ValueError, match="variance, got nan"):
        nz.lsuv_(model, torch.full((5, 8), math.nan))


# --- fixup ---


def fixup_net(branches=4, layers=2, width=32):
    blocks = [
        nz.Residual(nz.FixupBranch(width, layers, 2 * width), placement="none")
        for _ in range(branches)
    ]
    return nn.Sequential(nn.Linear(6, width), *blocks, nn.Linear(width, 3)).double()


@pytest.mark.parametrize(("layers", "exponent"), [(2, -1 / 2), (3, -1 / 4), (4, -1 / 6)])
@pytest.mark.parametrize("branches", [1, 16])
def test_fixup_scales_with_the_number_of_branches(layers, exponent, branches):
    model = fixup_net(branches, layers)
    assert nz.fixup_init_(model, model[-1], generator=seeded()) is model
    for residual in model[1:-1]:
        branch = residual.branch
        for layer in branch.layers[:-1]:
            kaiming = math.sqrt(2 / layer.in_features)
            # at least 2048 entries: 1.6 % is one sigma
            assert std(layer.weight) == pytest.approx(kaiming * branches**exponent, rel=0.08)
        assert branch.layers[-1].weight.eq(0).all()
        assert branch.multiplier == 1
        assert branch.layer_biases.tolist() == [0.0] * layers
        assert branch.activation_biases.tolist() == [0.0] * (layers - 1)
    assert model[-1].weight.eq(0).all()
    assert model[-1].bias.eq(0).all()
    assert std(model[0].weight) == pytest.approx(math.sqrt(2 / 6), rel=0.25)
    assert model[0].bias.eq(0).all()


def test_fixup_takes_the_gain_of_the_nonlinearity():
    relu, linear = fixup_net(), fixup_net()
    nz.fixup_init_(relu, relu[-1], generator=seeded())
    nz.fixup_init_(linear, linear[-1], "linear", generator=seeded())
    ratio = relu[1].branch.layers[0].weight / linear[1].branch.layers[0].weight
    torch.testing.assert_close(ratio, torch.full_like(ratio, math.sqrt(2)))


def test_a_fixup_block_starts_as_the_identity_and_only_its_last_layer_learns():
    model = fixup_net()
    nz.fixup_init_(model, model[-1], generator=seeded())
    x = normal(5, 32)
    assert torch.equal(model[1](x), x)
    assert model(normal(5, 6)).eq(0).all()
    branch = model[1].branch
    model[1](x).square().sum().backward()
    assert branch.layers[-1].weight.grad.abs().max() > 0
    assert branch.layers[0].weight.grad.eq(0).all()
    assert branch.multiplier.grad == 0


def test_fixup_resets_scalars_that_were_trained():
    model = fixup_net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    nz.fixup_init_(model, model[-1])
    assert model[2].branch.multiplier == 1
    assert model[2].branch.activation_biases.eq(0).all()
    assert model[2].branch.layer_biases.eq(0).all()


def test_fixup_branch_by_number():
    # two layers of 1 × 1: s · w2 (relu(w1 (x + a1) + b1) + a2)
    branch = nz.FixupBranch(1).double()
    with torch.no_grad():
        branch.layers[0].weight.fill_(2.0)
        branch.layers[1].weight.fill_(5.0)
        branch.layer_biases.copy_(torch.tensor([1.0, 0.25]))
        branch.activation_biases.fill_(-3.0)
        branch.multiplier.fill_(0.5)
    x = torch.tensor([[3.0], [-4.0]], dtype=torch.float64)
    expected = [[0.5 * 5 * (2 * 4 - 3 + 0.25)], [0.5 * 5 * 0.25]]
    assert branch(x).tolist() == expected
    assert sum(p.numel() for p in branch.parameters()) == 1 + 1 + 2 + 1 + 1


def test_every_bias_of_a_fixup_branch_has_its_place():
    branch = nz.FixupBranch(1, layers=3, activation=lambda z: 10 * z).double()
    with torch.no_grad():
        for layer in branch.layers:
            layer.weight.fill_(1.0)
        branch.layer_biases.copy_(torch.tensor([1.0, 2.0, 3.0]))
        branch.activation_biases.copy_(torch.tensor([4.0, 5.0]))
    # ((x + 1 + 4) · 10 + 2 + 5) · 10 + 3
    assert branch(torch.zeros(1, 1, dtype=torch.float64)).item() == 573.0


def test_the_effect_of_one_step_does_not_grow_with_depth():
    # Fixup's aim: Θ(η) for any L. He's draw without it explodes.
    changes = []
    inputs, target = normal(20, 6), normal(20, 3, seed=2)
    for branches in (4, 64):
        model = fixup_net(branches)
        nz.fixup_init_(model, model[-1], generator=seeded())
        step = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(3):
            before = model(inputs)
            step.zero_grad()
            (before - target).square().mean().backward()
            step.step()
        changes.append(std(model(inputs) - before))
    assert changes[1] < 3 * changes[0]


def test_fixup_branch_under_function_transforms():
    assert_functional_gradients(nz.FixupBranch(4, layers=3).double(), normal(5, 4))


# --- bad input ---

PLAIN = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
BAD = [
    (lambda: nz.gpt2_init_(PLAIN), ValueError, "model must contain a MultiHeadAttention"),
    (lambda: nz.gpt2_init_("model"), TypeError, "model must be a module, got str"),
    (lambda: nz.gpt2_init_(make_model(), std=-1.0), ValueError, "std .*-1"),
    (lambda: nz.gpt2_init_(make_model(), std="0.02"), TypeError, "std .*str"),
    (lambda: nz.deepnorm_init_(PLAIN, 1.0), ValueError, "model must contain"),
    (lambda: nz.deepnorm_init_(make_model(), -0.5), ValueError, "beta .*-0.5"),
    (lambda: nz.deepnorm_init_(make_model(), None), TypeError, "beta .*NoneType"),
    (lambda: nz.t_fixup_init_(PLAIN), ValueError, "model must contain"),
    (lambda: nz.t_fixup_init_(make_model(), "both"), ValueError, "stack .*'both'"),
    (lambda: nz.lsuv_(nn.ReLU(), torch.ones(3)), ValueError, "model .*linear or convolution"),
    (lambda: nz.lsuv_(torch.relu, torch.ones(3)), TypeError, "model .*builtin"),
    (lambda: nz.lsuv_(PLAIN, torch.ones(3, 4), tolerance=-1), ValueError, "tolerance .*-1"),
    (lambda: nz.lsuv_(PLAIN, torch.ones(3, 4), attempts=0), ValueError, "attempts .*0"),
    (lambda: nz.lsuv_(PLAIN, torch.ones(3, 4), attempts=1.5), TypeError, "attempts .*1.5"),
    (lambda: nz.fixup_init_(PLAIN, PLAIN[0]), ValueError, "model must contain a FixupBranch"),
    (lambda: nz.fixup_init_(fixup_net(), PLAIN[0]), ValueError, "classifier .*Linear"),
    (lambda: nz.fixup_init_(fixup_net(), None), ValueError, "classifier .*None"),
    (lambda: (m := fixup_net()) and nz.fixup_init_(m, m[-1], "swish"), ValueError, "'swish'"),
    (lambda: nz.FixupBranch(4, layers=1), ValueError, "layers must be at least 2, got 1"),
    (lambda: nz.FixupBranch(0), ValueError, "dim .*0"),
    (lambda: nz.FixupBranch(4, hidden=2.0), TypeError, "hidden .*2.0"),
    (lambda: nz.FixupBranch(4, activation="relu"), TypeError, "activation .*str"),
]
test_bad_input_is_refused = refused(BAD)


# --- the global generator ---


@pytest.mark.parametrize(
    "start",
    [
        nz.gpt2_init_,
        nz.t_fixup_init_,
        lambda model, **options: nz.lsuv_(model, TOKENS, **options),
        lambda model, **options: nz.deepnorm_init_(model, 0.5, **options),
        lambda model, **options: nz.mup_init_(model, narrower(), 3, **options),
        lambda model, **options: nz.mup_init_(model, narrower(), 8, **options),
    ],
    ids=["gpt2", "t_fixup", "lsuv", "deepnorm", "mup 3", "mup 8"],
)
def test_the_global_generator_draws_what_an_own_one_does(start):
    own = start(make_model(), generator=seeded(5)).state_dict()
    model = make_model()
    torch.manual_seed(5)
    for name, values in start(model).state_dict().items():
        assert torch.equal(values, own[name]), name


def narrower():
    """The same model with a narrower stream, so that its head is an output layer of μP."""
    with torch.random.fork_rng():
        base = make_model()
        base.head = nn.Linear(DIM // 2, VOCABULARY)
    return base
