"""Every public function and layer under `vmap`, `grad`, forward mode and `torch.compile`."""

import copy
import shutil

import pytest
import torch
from engine_helpers import PUBLIC, assert_close, normal, randomize
from torch import nn
from torch.nn.utils import parametrize

import normalization as nz


def layer(module, shape=(4, 6)):
    """Make a module a function of one tensor, with parameters that are not its initial ones."""
    module = randomize(module.double())
    return lambda x: module(x.reshape(shape))


def weight_normed_linear():
    linear = nn.Linear(6, 6).double()
    parametrize.register_parametrization(linear, "weight", nz.WeightNorm(0))
    return linear


# Each is called with one tensor [4, 6].
CALLS = {
    "BatchNorm": layer(nz.BatchNorm(6, track_running_stats=False)),
    "batch_norm": lambda x: nz.batch_norm(x, None, None, training=True),
    "batch_norm_backward": lambda x: nz.batch_norm_backward(x.sin(), x, None, None, training=True)[
        0
    ],
    "center": lambda x: nz.center(x, (-1,))[0],
    "LayerNorm": layer(nz.LayerNorm(6)),
    "layer_norm": lambda x: nz.layer_norm(x, 6),
    "layer_norm_backward": lambda x: nz.layer_norm_backward(x.sin(), x, 6)[0],
    "RMSNorm": layer(nz.RMSNorm(6)),
    "rms_norm": lambda x: nz.rms_norm(x, 6),
    "rms_norm_backward": lambda x: nz.rms_norm_backward(x.sin(), x, 6)[0],
    "FeedForward": layer(nz.FeedForward(6)),
    "MultiHeadAttention": layer(nz.MultiHeadAttention(6, 2), (1, 4, 6)),
    "TransformerBlock": layer(nz.TransformerBlock(6, 2), (1, 4, 6)),
    "attention": lambda x: nz.attention(x, x.cos(), x.sin(), causal=True),
    "attention_entropy": nz.attention_entropy,
    "attention_logits": lambda x: nz.attention_logits(x, x.cos(), soft_cap=2.0),
    "GroupNorm": layer(nz.GroupNorm(2, 6)),
    "InstanceNorm": layer(nz.InstanceNorm(4, affine=True), (1, 4, 6)),
    "WeightNorm": layer(weight_normed_linear()),
    "group_norm": lambda x: nz.group_norm(x, 3),
    "instance_norm": lambda x: nz.instance_norm(x[None]),
    "qk_normalize": lambda x: nz.qk_normalize(x, "l2"),
    "weight_norm": lambda x: nz.weight_norm(x, x[:, :1].exp()),
    "LayerScale": layer(nz.LayerScale(6, 0.1)),
    "ReZero": layer(nz.ReZero()),
    "Residual": layer(nz.Residual(nn.Linear(6, 6), nz.LayerNorm(6), "pre")),
    "SkipInit": layer(nz.SkipInit()),
    "FixupBranch": layer(nz.FixupBranch(6, activation=torch.tanh)),
    "MupReadout": layer(nz.MupReadout(6, 3, multiplier=0.25)),
    "Derf": layer(nz.Derf(6)),
    "DyT": layer(nz.DyT(6)),
    "NFResidual": layer(nz.NFResidual(nn.Linear(6, 6), 1.3)),
    "ScaledWSConv2d": layer(nz.ScaledWSConv2d(2, 3, 2), (1, 2, 3, 4)),
    "derf": lambda x: nz.derf(x, x.new_tensor(0.5), x.new_tensor(0.1)),
    "dyt": lambda x: nz.dyt(x, x.new_tensor(0.5)),
    "deferred_rms_linear": lambda x: nz.deferred_rms_linear(x, x.cos().T @ x),
    "scaled_weight_standardize": nz.scaled_weight_standardize,
    "one_pass_variance": nz.one_pass_variance,
    "sequential_sum": nz.sequential_sum,
    "two_pass_variance": nz.two_pass_variance,
    "welford_variance": nz.welford_variance,
}
RUNNING = normal(6, seed=8), normal(6, seed=9).square() + 0.1
# Other branches of the same names.
VARIANTS = {
    "BatchNorm in evaluation": layer(nz.BatchNorm(6).eval()),
    "batch_norm_backward in evaluation": lambda x: nz.batch_norm_backward(x.sin(), x, *RUNNING)[0],
    "RMSNorm with an offset": layer(nz.RMSNorm(6, offset=1.0)),
    "TransformerBlock, causal": layer(nz.TransformerBlock(6, 2, causal=True), (1, 4, 6)),
    "TransformerBlock, post": layer(
        nz.TransformerBlock(6, norm=nz.RMSNorm, placement="post"), (1, 4, 6)
    ),
    "TransformerBlock, sandwich": layer(nz.TransformerBlock(6, placement="sandwich"), (1, 4, 6)),
    "Residual with a LayerScale": layer(
        nz.Residual(nn.Linear(6, 6), nz.RMSNorm(6), scale=nz.LayerScale(6, 0.3))
    ),
    "Residual with a ReZero": layer(nz.Residual(nn.Linear(6, 6), nz.RMSNorm(6), scale=nz.ReZero())),
} | {
    f"MultiHeadAttention, {name}": layer(
        nz.MultiHeadAttention(6, 2, causal=True, qk_norm=name, soft_cap=20.0), (1, 4, 6)
    )
    for name in ("l2", "rms", "layer")
}
EVERY = CALLS | VARIANTS
# These have no tensor to transform: numbers, draws in place, changes of whole modules, the checks.
NUMBERS = {
    *("PLACEMENTS", "DeepNormConstants", "deepnorm_constants", "layer_scale_init", "calculate_fan"),
    *("calculate_gain", "second_moment_gain", "variance_gain", "nf_betas"),
}
IN_PLACE = {
    *("kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_", "orthogonal_"),
    *("lsuv_", "gpt2_init_", "deepnorm_init_", "fixup_init_", "t_fixup_init_", "mup_init_"),
    "adaptive_clip_grad_",
}
OF_MODULES = {
    *("mup_kinds", "mup_param_groups"),
    *("center_writes", "fold_batch_norm", "fold_norm_affine", "fold_weight_norm"),
}
CHECKS = {name for name in PUBLIC if "check" in name.lower()} | {
    *("last_over_first", "stream_growth"),
}
# torch's forward mode and its compiler still use functions that it has itself deprecated
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
INPUT = 0.7 * normal(3, 4, 6) + 0.1  # three examples; no value at a kink


def test_no_public_name_is_left_out():
    assert CALLS.keys() | NUMBERS | IN_PLACE | OF_MODULES | CHECKS == set(PUBLIC)


@pytest.mark.parametrize("name", EVERY)
def test_vmap_equals_a_loop_over_the_examples(name):
    call = EVERY[name]
    assert_close(torch.vmap(call)(INPUT), torch.stack([call(x) for x in INPUT]), 1e-11)


@pytest.mark.parametrize("name", EVERY)
def test_both_modes_of_differentiation_agree_with_finite_differences(name):
    call, x = EVERY[name], INPUT[0].clone().requires_grad_()
    assert torch.autograd.gradcheck(call, x, check_forward_ad=True)
    direction = normal(4, 6, seed=1)
    along = torch.func.jvp(lambda x: call(x).sin().sum(), (x,), (direction,))[1]
    gradient = torch.func.grad(lambda x: call(x).sin().sum())(x)
    assert_close(along, (gradient * direction).sum(), 1e-10)


def compare_compiled(names, backend):
    """Compile calls into one graph, and compare outputs and gradient with those uncompiled."""
    torch.compiler.reset()

    def together(x):
        return [EVERY[name](x) for name in names]

    def differentiate(function):
        x = INPUT[0].clone().requires_grad_()
        outputs = function(x)
        return outputs, torch.autograd.grad(sum(output.sin().sum() for output in outputs), x)

    compiled = torch.compile(together, fullgraph=True, backend=backend)
    (mine, my_gradient), (theirs, their_gradient) = map(differentiate, (compiled, together))
    for name, actual, expected in zip(names, mine, theirs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10, msg=name)
    torch.testing.assert_close(my_gradient, their_gradient, rtol=1e-10, atol=1e-10)


def test_norms_that_keep_statistics_compile_and_move_them():
    torch.compiler.reset()
    for module in (
        nz.BatchNorm(4),
        nz.BatchNorm(4, momentum=None),
        nz.InstanceNorm(4, affine=True, track_running_stats=True),
    ):
        twin, input = copy.deepcopy(module.double()), normal(2, 4, 3)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            assert_close(compiled(input), twin(input))
        for actual, expected in zip(module.buffers(), twin.buffers(), strict=True):
            assert_close(actual, expected)


def test_all_of_them_compile_into_one_graph():
    compare_compiled(EVERY, "aot_eager")


@pytest.mark.skipif(not shutil.which("c++"), reason="the default backend needs a C++ compiler")
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "batch_norm", "group_norm"])
def test_the_norms_compile_with_the_default_backend(name):
    compare_compiled([name], "inductor")
