"""The engine of the book on normalization, residual connections and initialization: its contents.

Chapters write `import normalization as nz`. Every name is defined in `normbook/engine/`, from
scratch, with PyTorch's signature where PyTorch has the thing. Run as a program,
`python code/normalization.py`, it is the sanity check of section A.
"""

# §5 and §7 Placement and residual connections: the branches, then what joins them
from normbook.engine.attention import (
    FeedForward,  # the branch that treats each position alone: up, activation, down
    MultiHeadAttention,  # the branch that mixes positions: query, key, value, output
    attention,  # softmax(logits) times values
    attention_entropy,  # how spread out each row of attention is, in nats
    attention_logits,  # scaled dot products, before the softmax
    qk_normalize,  # §6 queries and keys of bounded length
)

# §2 BatchNorm, §3 LayerNorm, §4 RMSNorm: their gradients
from normbook.engine.backward import (
    batch_norm_backward,  # §2 in closed form, in training and evaluation
    layer_norm_backward,  # §3 removes what would only shift or scale
    rms_norm_backward,  # §4 removes what would only scale
)

# §2 BatchNorm
from normbook.engine.batch_norms import (
    BatchNorm,  # statistics over the batch, and running ones for evaluation
    batch_norm,  # the formula of BatchNorm
)

# §10 Networks without norms
from normbook.engine.clipping import (
    adaptive_clip_grad_,  # each output unit's gradient, at most a share of its weights' norm
)

# §11 The same function with fewer norms
from normbook.engine.folding import (
    center_writes,  # a Pre-LN Transformer as a Pre-RMSNorm one
    deferred_rms_linear,  # RMSNorm and a linear layer, divided after the product
    fold_batch_norm,  # into the layer before it
    fold_norm_affine,  # gain and bias into the layers that read the norm
    fold_weight_norm,  # length and direction to one weight
)

# §6 Other groups of values to normalize
from normbook.engine.group_norms import (
    GroupNorm,  # statistics over a group of channels and all space, of one example
    InstanceNorm,  # the same for each channel alone
    group_norm,  # the formula of GroupNorm
    instance_norm,  # the formula of InstanceNorm
)

# §8 Initialization
from normbook.engine.initialization import (
    calculate_fan,  # inputs per output and outputs per input of a weight
    calculate_gain,  # how much a nonlinearity asks the weights to make up for
    kaiming_normal_,  # variance gain² / fan, drawn from a normal distribution
    kaiming_uniform_,  # the same from a uniform one
    orthogonal_,  # orthonormal rows or columns: every singular value is the gain
    second_moment_gain,  # the gain of any nonlinearity, by quadrature
    xavier_normal_,  # variance 2 gain² / (fan_in + fan_out), from a normal distribution
    xavier_uniform_,  # the same from a uniform one
)

# §3 LayerNorm, §4 RMSNorm
from normbook.engine.layers import (
    LayerNorm,  # §3 statistics over one example's features
    RMSNorm,  # §4 the same without subtracting the mean
    layer_norm,  # §3 the formula of LayerNorm
    rms_norm,  # §4 the formula of RMSNorm
)
from normbook.engine.model_initialization import (
    FixupBranch,  # a branch with Fixup's scalars: biases, and one multiplier
    deepnorm_init_,  # Xavier; the gain of value, output, up and down is beta
    fixup_init_,  # last layers 0, the others shrunk with depth, the classifier 0
    gpt2_init_,  # 0.02 everywhere, 0.02 / sqrt(2N) for what writes to the stream
    lsuv_,  # orthogonal, then unit variance of every layer's outputs on one batch
    t_fixup_init_,  # the gains with which a Transformer trains without norms
)

# §9 Maximal update parametrization
from normbook.engine.parametrization import (
    MupReadout,  # a linear layer that divides by the growth of width
    mup_init_,  # variances that depend on which fans of a weight grow
    mup_kinds,  # input, hidden, output, vector or fixed: the kind of each parameter
    mup_param_groups,  # the rates that go with them, for Adam and SGD
)

# §10 Without norms
from normbook.engine.pointwise import (
    Derf,  # gain * erf(alpha x + shift) + bias in the place of a norm
    DyT,  # gain * tanh(alpha x) + bias in the place of a norm
    derf,  # the formula of Derf
    dyt,  # the formula of DyT
)

# §5 and §7 What joins the branches to the stream
from normbook.engine.residuals import (
    PLACEMENTS,  # §5 every placement of norms around a branch, each with its formula
    Residual,  # §7 skip + branch, with the norms placed as one of these
    TransformerBlock,  # §5 two residual writes: attention, then feed-forward
)

# §A Sanity check
from normbook.engine.sanity import (
    CHECKS,  # the six of them by letter, each a function of the seeds
    Check,  # what a check returns: label, line, passed, and the numbers over seeds
    check_a,  # LayerNorm equals PyTorch's
    check_b,  # RMSNorm equals PyTorch's, and does not forget a shift
    check_c,  # BatchNorm in training and in evaluation
    check_d,  # gradient of the last block over the first's, Pre- and Post-LN
    check_e,  # Kaiming keeps the second moment, Xavier halves it
    check_f,  # the residual stream's growth, and 1/sqrt(2N)
    last_over_first,  # what [d] measures, for any loss, branch and depth
    sanity_check,  # runs the six checks
    stream_growth,  # what [f] measures, write by write
)

# §6, §7 and §10 Scales on the branch and on the skip
from normbook.engine.scales import (
    DeepNormConstants,  # §6 alpha and beta of encoder and decoder
    LayerScale,  # §7 one learned number a feature, from a small one
    NFResidual,  # §10 x + alpha * branch(x / beta), without norms
    ReZero,  # §7 one learned number, from 0, and no norms
    SkipInit,  # §7 one learned number, from 0 or near it
    deepnorm_constants,  # §6 how much a DeepNorm weighs its skip
    layer_scale_init,  # §7 where LayerScale starts, by depth
    nf_betas,  # §10 the predicted scale of the stream at each block
    variance_gain,  # §10 how much a nonlinearity asks standardized weights to make up for
)

# §2 to §6 What all norms that subtract a mean share
from normbook.engine.shared import (
    center,  # x - E[x] over given axes, and the variance
)

# §11 The variance, three ways, and a sum that rounds at every step
from normbook.engine.variances import (
    one_pass_variance,  # E[x²] - E[x]², which cancels
    sequential_sum,  # in the input's own dtype, half precision too
    two_pass_variance,  # center first, as the norms of this book do
    welford_variance,  # one reading that does not cancel
)

# §6 and §10 Norms of weights
from normbook.engine.weights import (
    ScaledWSConv2d,  # §10 a convolution with standardized weights
    WeightNorm,  # §6 direction and length of a weight as its parameters
    scaled_weight_standardize,  # §10 mean 0 and variance gain² / fan_in for every output
    weight_norm,  # §6 the formula of WeightNorm
)

__all__ = [  # noqa: RUF022 (in the order of the chapters)
    # §2 BatchNorm
    "BatchNorm",
    "batch_norm",
    "batch_norm_backward",
    "center",
    # §3 LayerNorm
    "LayerNorm",
    "layer_norm",
    "layer_norm_backward",
    # §4 RMSNorm
    "RMSNorm",
    "rms_norm",
    "rms_norm_backward",
    # §5 Pre-LN and Post-LN
    "FeedForward",
    "MultiHeadAttention",
    "PLACEMENTS",
    "TransformerBlock",
    "attention",
    "attention_entropy",
    "attention_logits",
    # §6 Other groups of values to normalize
    "GroupNorm",
    "InstanceNorm",
    "DeepNormConstants",
    "WeightNorm",
    "deepnorm_constants",
    "group_norm",
    "instance_norm",
    "qk_normalize",
    "weight_norm",
    # §7 Residual connections
    "LayerScale",
    "ReZero",
    "Residual",
    "SkipInit",
    "layer_scale_init",
    # §8 Initialization
    "FixupBranch",
    "calculate_fan",
    "calculate_gain",
    "deepnorm_init_",
    "fixup_init_",
    "gpt2_init_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "lsuv_",
    "orthogonal_",
    "second_moment_gain",
    "t_fixup_init_",
    "xavier_normal_",
    "xavier_uniform_",
    # §9 Maximal update parametrization
    "MupReadout",
    "mup_init_",
    "mup_kinds",
    "mup_param_groups",
    # §10 Networks without norms
    "adaptive_clip_grad_",
    # §10 Without norms
    "Derf",
    "DyT",
    "NFResidual",
    "ScaledWSConv2d",
    "derf",
    "dyt",
    "nf_betas",
    "scaled_weight_standardize",
    "variance_gain",
    # §11 Engineering
    "center_writes",
    "deferred_rms_linear",
    "fold_batch_norm",
    "fold_norm_affine",
    "fold_weight_norm",
    "one_pass_variance",
    "sequential_sum",
    "two_pass_variance",
    "welford_variance",
    # §A Sanity check
    "CHECKS",
    "Check",
    "check_a",
    "check_b",
    "check_c",
    "check_d",
    "check_e",
    "check_f",
    "last_over_first",
    "sanity_check",
    "stream_growth",
]

if __name__ == "__main__":
    from normbook.engine.sanity import main

    raise SystemExit(main())
