"""Folded norms compute what they computed before, and leave the originals alone."""

import copy

import pytest
import torch
from engine_helpers import (
    assert_close,
    assert_transforms,
    gradients,
    normal,
    randomize,
    refused,
)
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import normalization as nz

TOLERANCE = 1e-10


def unchanged(module):
    """Remember a module's state; the function returned tells whether it still has it."""
    before = copy.deepcopy(module.state_dict())
    return lambda: all(
        torch.equal(before[key], value) for key, value in module.state_dict().items()
    )


# --- BatchNorm ---

LAYERS = {
    "linear": (lambda bias: nn.Linear(4, 6, bias=bias), (5, 4)),
    "conv1d": (lambda bias: nn.Conv1d(4, 6, 3, padding=1, bias=bias), (5, 4, 7)),
    "conv2d": (lambda bias: nn.Conv2d(4, 6, 3, stride=2, bias=bias), (5, 4, 7, 7)),
    "grouped": (lambda bias: nn.Conv2d(4, 6, 3, groups=2, dilation=2, bias=bias), (5, 4, 7, 7)),
    "conv3d": (lambda bias: nn.Conv3d(4, 6, 2, bias=bias), (2, 4, 3, 3, 3)),
}
PEERS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def trained(norm, shape):
    """Give a BatchNorm gain, bias and running statistics, and put it in evaluation mode."""
    randomize(norm).double()
    for seed in range(3):
        norm(normal(*shape, seed=seed, offset=seed, scale=2))
    return norm.eval()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("bias", "ours", "affine"), [(True, True, True), (False, False, True), (False, True, False)]
)
def test_fold_batch_norm(name, bias, ours, affine):
    make, shape = LAYERS[name]
    layer, input = make(bias).double(), normal(*shape)
    kind = nz.BatchNorm if ours else PEERS[len(shape)]
    norm = trained(kind(6, affine=affine), layer(input).shape)
    originals = [unchanged(layer), unchanged(norm)]
    folded = nz.fold_batch_norm(layer, norm)
    assert type(folded) is type(layer)
    assert folded.bias is not None
    assert_close(folded(input), norm(layer(input)), TOLERANCE)
    assert all(same() for same in originals)
    assert folded.weight.data_ptr() != layer.weight.data_ptr()
    folded(input).sum().backward()
    assert layer.weight.grad is None


def test_fold_batch_norm_in_float32():
    layer, input = nn.Linear(4, 6), normal(5, 4, dtype=torch.float32)
    norm = trained(nz.BatchNorm(6), (5, 6)).float()
    torch.testing.assert_close(nz.fold_batch_norm(layer, norm)(input), norm(layer(input)))


# --- weight norm ---


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_fold_weight_norm(ours, dim):
    layer = nn.Linear(4, 6).double()
    if ours:
        parametrize.register_parametrization(layer, "weight", nz.WeightNorm(dim))
    else:
        layer = parametrizations.weight_norm(layer, dim=dim)
    randomize(layer)
    same = unchanged(layer)
    folded = nz.fold_weight_norm(layer)
    assert type(folded) is nn.Linear
    assert folded.state_dict().keys() == {"weight", "bias"}
    assert_close(folded(normal(5, 4)), layer(normal(5, 4)), TOLERANCE)
    assert same()
    assert parametrize.is_parametrized(layer, "weight")


def test_a_weight_normed_layer_folds_into_its_batch_norm_after():
    layer = parametrizations.weight_norm(nn.Linear(4, 6).double())
    norm = trained(nz.BatchNorm(6), (5, 6))
    with pytest.raises(TypeError, match="layer must be one of Linear"):
        nz.fold_batch_norm(layer, norm)
    folded = nz.fold_batch_norm(nz.fold_weight_norm(layer), norm)
    assert_close(folded(normal(5, 4)), norm(layer(normal(5, 4))), TOLERANCE)


# --- gain and bias of a Pre-LN norm ---

NORMS = {
    "ours": lambda: nz.LayerNorm(4),
    "torch": lambda: nn.LayerNorm(4),
    "no bias": lambda: nz.LayerNorm(4, bias=False),
    "plain": lambda: nz.LayerNorm(4, elementwise_affine=False),
    "rms": lambda: nz.RMSNorm(4, eps=1e-6),
    "torch rms": lambda: nn.RMSNorm(4),
    "gemma": lambda: nz.RMSNorm(4, offset=1.0),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_fold_norm_affine(name, bias):
    norm = randomize(NORMS[name]()).double()
    linears = [nn.Linear(4, width, bias=bias).double() for width in (3, 5)]
    originals = [unchanged(module) for module in (norm, *linears)]
    plain, *folded = nz.fold_norm_affine(norm, *linears)
    assert not list(plain.parameters())
    input = normal(6, 4, offset=1)
    for before, after in zip(linears, folded, strict=True):
        assert_close(after(plain(input)), before(norm(input)), TOLERANCE)
        has_bias = bias or getattr(norm, "bias", None) is not None
        assert (after.bias is not None) == has_bias
    assert all(same() for same in originals)


# --- from Pre-LN to Pre-RMSNorm ---


class Transformer(nn.Module):
    """A small Pre-LN Transformer of the book's blocks."""

    def __init__(self, features=None, norm=nz.LayerNorm, **options):
        super().__init__()
        self.embedding = nn.Linear(features, 8) if features else nn.Embedding(11, 8)
        self.positions = nn.Parameter(torch.randn(5, 8))
        self.blocks = nn.ModuleList(
            nz.TransformerBlock(8, 2, 12, norm=norm, **options) for _ in range(3)
        )
        self.final_norm = norm(8)
        self.head = nn.Linear(8, 7)

    def forward(self, input):
        stream = self.stream(input)
        return self.head(self.final_norm(stream))

    def stream(self, input):
        stream = self.embedding(input) + self.positions
        for block in self.blocks:
            stream = block(stream)
        return stream


@pytest.mark.parametrize("features", [None, 3])
@pytest.mark.parametrize("norm", [nz.LayerNorm, nn.LayerNorm])
@pytest.mark.parametrize("options", [{}, {"causal": True, "skip_scale": 0.9, "scale": 0.5}])
def test_center_writes(features, norm, options):
    model = randomize(Transformer(features, norm, **options)).double()
    input = normal(2, 5, features) if features else torch.arange(10).reshape(2, 5)
    same = unchanged(model)
    centered = nz.center_writes(model)
    assert_close(centered(input), model(input), TOLERANCE)
    assert same()
    kinds = [type(module) for module in centered.modules()]
    assert kinds.count(nz.RMSNorm) == 7
    assert norm not in kinds
    assert centered.stream(input).mean(-1).abs().max() < 1e-12
    assert model.stream(input).mean(-1).abs().max() > 0.1


def test_center_writes_without_gain_or_bias_of_the_norms():
    def plain(dim):
        return nz.LayerNorm(dim, elementwise_affine=False)

    model = randomize(Transformer(norm=plain)).double()
    input = torch.arange(10).reshape(2, 5)
    assert_close(nz.center_writes(model)(input), model(input), TOLERANCE)


def test_rms_norms_alone_are_not_the_same_function():
    model = randomize(Transformer()).double()
    swapped = nz.center_writes(model)
    swapped.embedding.load_state_dict(model.embedding.state_dict())  # the mean comes back
    input = torch.arange(10).reshape(2, 5)
    assert (swapped(input) - model(input)).abs().max() > 0.01


# --- bad input ---

LINEAR = nn.Linear(4, 6)
EVAL = nz.BatchNorm(6).eval()
UNTRACKED = nz.BatchNorm(6, track_running_stats=False).eval()
LACKING = nn.Module()
LACKING.blocks = nn.ModuleList()
SCALED = {"scale": lambda dim: nz.LayerScale(dim, 0.1)}
BAD = [
    (lambda: nz.fold_batch_norm(LINEAR, nz.BatchNorm(6)), ValueError, "norm .*training mode"),
    (lambda: nz.fold_batch_norm(LINEAR, UNTRACKED), ValueError, "norm .*running statistics"),
    (
        lambda: nz.fold_batch_norm(LINEAR, nz.BatchNorm(4).eval()),
        ValueError,
        "6 outputs, got 4",
    ),
    (lambda: nz.fold_batch_norm(LINEAR, nz.LayerNorm(6)), TypeError, "norm .*got LayerNorm"),
    (lambda: nz.fold_batch_norm(nz.ScaledWSConv2d(4, 6, 3), EVAL), TypeError, "ScaledWSConv2d"),
    (
        lambda: nz.fold_batch_norm(nn.ConvTranspose2d(4, 6, 3), EVAL),
        TypeError,
        "ConvTranspose2d",
    ),
    (lambda: nz.fold_weight_norm(LINEAR), ValueError, r"weight norm alone, got {}"),
    (
        lambda: nz.fold_weight_norm(parametrizations.orthogonal(nn.Linear(4, 6))),
        ValueError,
        "got .*_Orthogonal",
    ),
    (
        lambda: nz.fold_weight_norm(torch.ones(3)),
        TypeError,
        "layer must be a module, got Tensor",
    ),
    (lambda: nz.fold_norm_affine(nz.LayerNorm(4)), ValueError, "at least one layer"),
    (lambda: nz.fold_norm_affine(nz.LayerNorm(3), LINEAR), ValueError, "3 features .*got 4"),
    (lambda: nz.fold_norm_affine(nz.LayerNorm((2, 4)), LINEAR), ValueError, r"\(2, 4\)"),
    (lambda: nz.fold_norm_affine(EVAL, LINEAR), TypeError, "norm .*got BatchNorm"),
    (lambda: nz.fold_norm_affine(nz.LayerNorm(4), nn.Conv1d(4, 6, 1)), TypeError, "got Conv1d"),
    (lambda: nz.center_writes(LINEAR), TypeError, "model .*blocks, got Linear"),
    (lambda: nz.center_writes(LACKING), ValueError, "'embedding'"),
    (lambda: nz.center_writes(Transformer(placement="post")), ValueError, "placement .*'post'"),
    (lambda: nz.center_writes(Transformer(norm=nz.RMSNorm)), TypeError, "norm .*got RMSNorm"),
    (lambda: nz.center_writes(Transformer(**SCALED)), TypeError, "scale .*got LayerScale"),
    (
        lambda: nz.center_writes(Transformer(), embeddings=("blocks",)),
        TypeError,
        "blocks must be a parameter.*got ModuleList",
    ),
    (lambda: nz.center_writes(Transformer(), final=("norm", "head")), ValueError, "'norm'"),
]
test_bad_input_is_refused = refused(BAD)


# --- A division after the product ---


@pytest.mark.parametrize(
    ("shape", "eps", "bias"),
    [((4,), None, True), ((3, 4), None, False), ((3, 4), 0.0, True), ((2, 3, 4), 0.1, False)],
)
def test_deferred_rms_linear(bias, eps, shape):
    values = [normal(*shape, scale=1e-8 if eps is None else 1.0), normal(6, 4, seed=1)]
    values += [normal(6, seed=2)] if bias else []
    leaves = [[value.clone().requires_grad_() for value in values] for _ in range(2)]
    deferred = nz.deferred_rms_linear(*leaves[0], eps=eps)
    x, *layer = leaves[1]
    plain = nn.functional.linear(nz.rms_norm(x, 4, eps=eps), *layer)
    assert_close(deferred, plain)
    for actual, expected in zip(
        gradients(deferred, leaves[0]), gradients(plain, leaves[1]), strict=True
    ):
        scale = max(1.0, expected.abs().max().item())
        assert_close(actual / scale, expected / scale, 1e-11)


def test_deferred_rms_linear_reads_a_folded_gain():
    norm, linear = randomize(nz.RMSNorm(4)).double(), nn.Linear(4, 6).double()
    _, folded = nz.fold_norm_affine(norm, linear)
    x = normal(3, 4)
    assert_close(nz.deferred_rms_linear(x, folded.weight, folded.bias), linear(norm(x)))


def test_deferred_rms_linear_under_transforms():
    rows = [normal(3, 5, seed=1), normal(3, 6, 5, seed=2), normal(3, 6, seed=3)]
    assert_transforms(lambda x, weight, bias: nz.deferred_rms_linear(x, weight, bias, 0.1), *rows)


def test_deferred_rms_linear_overflows_where_the_norm_before_it_does_not():
    x = torch.full((1, 64), 2048.0, dtype=torch.float16)
    weight = torch.ones(1, 64, dtype=torch.float16)
    assert nz.deferred_rms_linear(x, weight, eps=1e-5).isinf().all()
    small = nz.deferred_rms_linear(x / 1024, weight.float(), weight[:, 0].float(), eps=1e-5)
    assert small.dtype == torch.float16
    assert_close(small, torch.full((1, 1), 65.0, dtype=torch.float16), 1e-3)
    before = nn.functional.linear(nz.rms_norm(x, 64, eps=1e-5), weight)
    assert_close(before, torch.full((1, 1), 64.0, dtype=torch.float16), 1e-3)


BAD_PRODUCTS = [
    (lambda: nz.deferred_rms_linear(normal(3, 4), normal(6, 5)), ValueError, "weight must be"),
    (lambda: nz.deferred_rms_linear(normal(3, 4), normal(4)), ValueError, "weight must be"),
    (
        lambda: nz.deferred_rms_linear(torch.tensor(1.0), normal(4, 1)),
        ValueError,
        "weight must be",
    ),
    (
        lambda: nz.deferred_rms_linear(normal(3, 4), normal(6, 4), normal(5)),
        ValueError,
        "bias must have shape",
    ),
    (
        lambda: nz.deferred_rms_linear(normal(3, 4), normal(6, 4).float()),
        TypeError,
        "weight must have the input's dtype",
    ),
    (lambda: nz.deferred_rms_linear([1.0], normal(6, 1)), TypeError, "input must be a tensor"),
    (
        lambda: nz.deferred_rms_linear(normal(3, 4), normal(6, 4), eps=-1.0),
        ValueError,
        "eps must be",
    ),
]
test_deferred_rms_linear_refuses_what_does_not_fit = refused(BAD_PRODUCTS)
