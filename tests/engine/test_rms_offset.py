"""RMSNorm's offset: Gemma's gain 1 + w, which changes nothing for anyone else."""

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import (
    DTYPES,
    TOLERANCE,
    assert_close,
    assert_compiles,
    assert_transforms,
    gradients,
    normal,
    randomize,
    refused,
)

import normalization as nz


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 1.0, -0.5])
def test_the_gain_is_offset_plus_weight(offset, dtype):
    norm = randomize(nz.RMSNorm(8, eps=1e-6, offset=offset)).to(dtype)
    leaf = normal(5, 8, dtype=dtype).requires_grad_()
    mine, peer = norm(leaf), F.rms_norm(leaf, [8], offset + norm.weight, 1e-6)
    assert_close(mine, peer, TOLERANCE[dtype])
    leaves = [leaf, norm.weight]
    for actual, expected in zip(gradients(mine, leaves), gradients(peer, leaves), strict=True):
        assert_close(actual, expected, 10 * TOLERANCE[dtype])


def test_it_starts_as_the_plain_norm():
    gemma, plain = nz.RMSNorm(4, offset=1.0), nz.RMSNorm(4)
    assert gemma.weight.tolist() == [0.0] * 4
    assert plain.weight.tolist() == [1.0] * 4
    input = normal(3, 4, dtype=torch.float32)
    assert torch.equal(gemma(input), plain(input))
    assert gemma.state_dict().keys() == plain.state_dict().keys() == {"weight"}
    assert "offset" not in repr(plain)
    assert "offset=1" in repr(gemma)


def test_the_sum_of_offset_and_weight_is_not_rounded_to_half():
    # 1 + 2**-10 has no bfloat16
    weight = torch.full((256,), 2**-10, dtype=torch.bfloat16)
    input = normal(64, 256, dtype=torch.bfloat16)
    output = nz.rms_norm(input, 256, weight, 1e-6, offset=1.0)
    exact = nz.rms_norm(input.double(), 256, weight.double(), 1e-6, offset=1.0)
    assert output.dtype == torch.bfloat16
    error = (output.double() - exact).abs() / (exact.abs() + 1e-3)
    assert error.max() < 0.55 * torch.finfo(torch.bfloat16).eps


def test_transforms():
    assert_transforms(
        lambda x, w: nz.rms_norm(x, 4, w, offset=1.0), normal(3, 5, 4), normal(3, 4, seed=1)
    )


ONES = torch.ones(4, 3)


@refused(
    [
        (lambda: nz.rms_norm(ONES, 3, offset=1.0), ValueError, "offset .*weight.*1.0"),
        (lambda: nz.rms_norm(ONES, 3, ONES[0], offset="1"), TypeError, "offset .*str"),
        (lambda: nz.rms_norm(ONES, 3, ONES[0], offset=float("nan")), ValueError, "offset .*nan"),
        (lambda: nz.RMSNorm(3, elementwise_affine=False, offset=1), ValueError, "offset .*1"),
    ]
)
def test_bad_input_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_it_compiles_without_a_graph_break():
    assert_compiles(nz.RMSNorm(4, offset=1.0).double(), normal(5, 4))
