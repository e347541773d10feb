"""What tests of tensors share: draws, comparisons, refusals, a run through torch's transforms."""

import pytest
import torch

import normalization as nz

PUBLIC = [name for name in vars(nz) if not name.startswith("_")]
DTYPES = [torch.float64, torch.float32]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


def normal(*shape, seed=0, dtype=torch.float64, offset=0.0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (offset + scale * draws).to(dtype)


def assert_close(actual, expected, tolerance=1e-12):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def randomize(module):
    """Give every parameter of a module a value that is not its initial one."""
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=100 + seed) + 0.5)
    return module


def gradients(output, leaves):
    """Differentiate a curved function of the output by the leaves."""
    return torch.autograd.grad(output.sin().sum(), leaves)


def assert_same(mine, peer, input, tolerance=1e-12):
    """Compare output, gradients and buffers of two modules whose state has the same names."""
    leaves = [input.clone().requires_grad_() for _ in range(2)]
    outputs = [module(leaf) for module, leaf in zip((mine, peer), leaves, strict=True)]
    assert_close(*outputs, tolerance)
    pairs = zip((mine, peer), leaves, outputs, strict=True)
    mine_gradients, peer_gradients = (
        gradients(output, [leaf, *module.parameters()]) for module, leaf, output in pairs
    )
    for actual, expected in zip(mine_gradients, peer_gradients, strict=True):
        assert_close(actual, expected, 20 * tolerance)
    buffers = dict(peer.named_buffers())
    assert buffers.keys() == dict(mine.named_buffers()).keys()
    for name, value in mine.named_buffers():
        assert_close(value, buffers[name], tolerance)


def exchange_state(mine, peer):
    """Load a peer's state, and let it load ours: the names and shapes are the same."""
    mine.load_state_dict(peer.state_dict())
    peer.load_state_dict(mine.state_dict())


def assert_transforms(function, *arguments):
    """Run a function of single examples under vmap, grad and both modes of differentiation."""
    expected = torch.stack([function(*members) for members in zip(*arguments, strict=True)])
    assert_close(torch.vmap(function)(*arguments), expected)
    first = [argument[0].clone().requires_grad_() for argument in arguments]
    places = tuple(range(len(first)))
    functional = torch.func.grad(lambda *x: function(*x).sin().sum(), places)(*first)
    for actual, exact in zip(functional, gradients(function(*first), first), strict=True):
        assert_close(actual, exact)
    assert torch.autograd.gradcheck(function, first)
    assert torch.autograd.gradgradcheck(function, first)


def assert_rounds_once(output, exact, dtype, share=0.55):
    """Half precision is off by half a unit in the last place, and a little of float32."""
    assert output.dtype == dtype
    error = (output.double() - exact).abs() / (exact.abs() + 1e-3)
    assert error.max() < share * torch.finfo(dtype).eps


def assert_functional_gradients(module, input):
    """Compare `torch.func.grad` by a module's parameters with autograd."""
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())

    def loss(parameters, buffers):
        return torch.func.functional_call(module, (parameters, buffers), (input,)).sin().sum()

    expected = torch.autograd.grad(module(input).sin().sum(), list(parameters.values()))
    found = torch.func.grad(loss)(parameters, {k: v.clone() for k, v in buffers.items()})
    for actual, exact in zip(found.values(), expected, strict=True):
        assert_close(actual, exact)


def refused(cases):
    """Make a test of (call, error, match): each call must raise that error, and say so."""

    @pytest.mark.parametrize(("call", "error", "match"), cases)
    def test(call, error, match):
        with pytest.raises(error, match=match):
            call()

    return test
