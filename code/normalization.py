"""The engine of the book on normalization, residual connections and initialization: its contents.

Chapters write `import normalization as nz`. Every name is defined in `normbook/engine/`, from
scratch, with PyTorch's signature where PyTorch has the thing, and stands here once, under the
chapter that introduces it; the page "The engine" is made from this file. Run as a program,
`python code/normalization.py`, it is the sanity check of section A.
"""

# ruff: noqa: I001 (in the order of the chapters)

# §2 BatchNorm
from normbook.engine.batch_norms import (
    BatchNorm as BatchNorm,  # statistics over the batch, and running ones for evaluation
    batch_norm as batch_norm,  # the formula of BatchNorm
)
from normbook.engine.backward import (
    batch_norm_backward as batch_norm_backward,  # in closed form, in training and evaluation
)
from normbook.engine.shared import (
    center as center,  # x - E[x] over given axes, and the variance: norms with a mean begin so
)

# §3 LayerNorm
from normbook.engine.layer_norms import (
    LayerNorm as LayerNorm,  # statistics over one example's features
    layer_norm as layer_norm,  # the formula of LayerNorm
)
from normbook.engine.backward import (
    layer_norm_backward as layer_norm_backward,  # removes what would only shift or scale
)

# §4 RMSNorm
from normbook.engine.layer_norms import (
    RMSNorm as RMSNorm,  # division by the root mean square of one example's features, no mean
    rms_norm as rms_norm,  # the formula of RMSNorm
)
from normbook.engine.backward import (
    rms_norm_backward as rms_norm_backward,  # removes what would only scale
)

# §5 Pre-LN against Post-LN
from normbook.engine.residuals import (
    PLACEMENTS as PLACEMENTS,  # every placement of norms around a branch: its norms, its formula
    TransformerBlock as TransformerBlock,  # two residual writes: attention, then feed-forward
)
from normbook.engine.attention import (
    FeedForward as FeedForward,  # the branch that treats each position alone: up, activation, down
    MultiHeadAttention as MultiHeadAttention,  # the branch that mixes positions, head by head
    attention as attention,  # softmax(logits) times values
    attention_entropy as attention_entropy,  # how spread out each row of attention is, in nats
    attention_logits as attention_logits,  # scaled dot products, before the softmax
)

# §6 Placement variants
from normbook.engine.group_norms import (
    GroupNorm as GroupNorm,  # statistics over a group of channels and all space, of one example
    InstanceNorm as InstanceNorm,  # the same for each channel alone
    group_norm as group_norm,  # the formula of GroupNorm
    instance_norm as instance_norm,  # the formula of InstanceNorm
)
from normbook.engine.weight_norm import (
    WeightNorm as WeightNorm,  # direction and length of a weight as its parameters
    weight_norm as weight_norm,  # the formula of WeightNorm
)
from normbook.engine.attention import (
    qk_normalize as qk_normalize,  # queries and keys of bounded length
)
from normbook.engine.deepnorm import (
    DeepNormConstants as DeepNormConstants,  # alpha and beta of encoder and decoder
    deepnorm_constants as deepnorm_constants,  # how much a DeepNorm weighs its skip
)

# §7 Residual connections and scaling
from normbook.engine.residuals import (
    Residual as Residual,  # skip + branch, with the norms where PLACEMENTS says
)
from normbook.engine.scales import (
    LayerScale as LayerScale,  # one learned number a feature, from a small one
    ReZero as ReZero,  # one learned number, from 0, and no norms
    SkipInit as SkipInit,  # one learned number, from 0 or near it
    layer_scale_init as layer_scale_init,  # where LayerScale starts, by depth
)

# §8 Initialization
from normbook.engine.initialization import (
    calculate_fan as calculate_fan,  # inputs per output and outputs per input of a weight
    calculate_gain as calculate_gain,  # how much a nonlinearity asks the weights to make up for
    kaiming_normal_ as kaiming_normal_,  # variance gain² / fan, drawn from a normal distribution
    kaiming_uniform_ as kaiming_uniform_,  # the same from a uniform one
    orthogonal_ as orthogonal_,  # orthonormal rows or columns: every singular value is the gain
    second_moment_gain as second_moment_gain,  # the gain of any nonlinearity, by quadrature
    xavier_normal_ as xavier_normal_,  # variance 2 gain² / (fan_in + fan_out), from a normal one
    xavier_uniform_ as xavier_uniform_,  # the same from a uniform one
)
from normbook.engine.model_initialization import (
    FixupBranch as FixupBranch,  # a branch with Fixup's scalars: biases, and one multiplier
    deepnorm_init_ as deepnorm_init_,  # Xavier; the gain of value, output, up and down is beta
    fixup_init_ as fixup_init_,  # last layers 0, the others shrunk with depth, the classifier 0
    gpt2_init_ as gpt2_init_,  # 0.02 everywhere, 0.02 / sqrt(2N) for what writes to the stream
    lsuv_ as lsuv_,  # orthogonal, then unit variance of every layer's outputs on one batch
    t_fixup_init_ as t_fixup_init_,  # the gains with which a Transformer trains without norms
)

# §9 Maximal update parametrization
from normbook.engine.parametrization import (
    MupReadout as MupReadout,  # a linear layer that divides by the growth of width
    mup_init_ as mup_init_,  # variances that depend on which fans of a weight grow
    mup_kinds as mup_kinds,  # input, hidden, output, vector or fixed: the kind of each parameter
    mup_param_groups as mup_param_groups,  # the rates that go with them, for Adam and SGD
)

# §10 Without norms
from normbook.engine.norm_free import (
    Derf as Derf,  # gain * erf(alpha x + shift) + bias in the place of a norm
    DyT as DyT,  # gain * tanh(alpha x) + bias in the place of a norm
    NFResidual as NFResidual,  # x + alpha * branch(x / beta), without norms
    ScaledWSConv2d as ScaledWSConv2d,  # a convolution with standardized weights
    adaptive_clip_grad_ as adaptive_clip_grad_,  # no unit's gradient long beside its weights
    derf as derf,  # the formula of Derf
    dyt as dyt,  # the formula of DyT
    nf_betas as nf_betas,  # the predicted scale of the stream at each block
    scaled_weight_standardize as scaled_weight_standardize,  # mean 0, variance gain² / fan_in
    variance_gain as variance_gain,  # what a nonlinearity asks standardized weights to make up for
)

# §11 Engineering practice
from normbook.engine.folding import (
    center_writes as center_writes,  # a Pre-LN Transformer as a Pre-RMSNorm one
    deferred_rms_linear as deferred_rms_linear,  # RMSNorm and a linear layer, divided at the end
    fold_batch_norm as fold_batch_norm,  # into the layer before it
    fold_norm_affine as fold_norm_affine,  # gain and bias into the layers that read the norm
    fold_weight_norm as fold_weight_norm,  # length and direction to one weight
)
from normbook.engine.variances import (
    one_pass_variance as one_pass_variance,  # E[x²] - E[x]², which cancels
    sequential_sum as sequential_sum,  # in the input's own dtype, half precision too
    two_pass_variance as two_pass_variance,  # center first, as the norms of this book do
    welford_variance as welford_variance,  # one reading that does not cancel
)

# §A Sanity check
from normbook.engine.sanity import (
    CHECKS as CHECKS,  # the six by letter, each a function of the seeds that returns a `Check`
    Check as Check,  # what a check returns: label, line, passed, and the numbers over seeds
    check_a as check_a,  # LayerNorm equals PyTorch's
    check_b as check_b,  # RMSNorm equals PyTorch's, and does not forget a shift
    check_c as check_c,  # BatchNorm in training and in evaluation
    check_d as check_d,  # gradient of the last block over the first's, Pre- and Post-LN
    check_e as check_e,  # Kaiming keeps the second moment, Xavier halves it
    check_f as check_f,  # the residual stream's growth, and 1/sqrt(2N)
    last_over_first as last_over_first,  # what [d] measures, for any loss, branch and depth
    sanity_check as sanity_check,  # runs the six checks
    stream_growth as stream_growth,  # what [f] measures, write by write
)

if __name__ == "__main__":
    from normbook.engine.sanity import main

    raise SystemExit(main())
