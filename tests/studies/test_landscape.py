"""What is measured along the step, against a bowl whose curvature is known, and by hand."""

import pytest
import torch

from normbook.lab import models, stacks
from normbook.lab.landscape import LandscapeMeter, along_the_step


class Bowl:
    """Two members with the losses ½ · c · ‖w‖², c = 1 and 10: gradient c · w, smoothness c."""

    curvature = torch.tensor([1.0, 10.0], dtype=torch.float64)

    def __init__(self):
        self.weights = torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)

    def gradient(self, inputs, targets):
        losses = 0.5 * self.curvature * self.weights.square().sum(1)
        return losses, self.curvature[:, None] * self.weights


def test_a_bowl():
    bowl = Bowl()
    start = bowl.weights.clone()
    found = along_the_step(bowl, None, None, [0.05, 0.1, 0.2])
    assert torch.equal(bowl.weights, start)
    assert torch.allclose(found.smoothness, bowl.curvature)
    assert torch.allclose(found.gradient, torch.tensor([5.0, 20.0], dtype=torch.float64))
    # member 0: w shrinks by 1 − a; member 1 lands on the bottom at 0.1 and beyond it at 0.2
    low = torch.tensor([12.5 * 0.8**2, 0.0], dtype=torch.float64)
    high = torch.tensor([12.5 * 0.95**2, 20.0], dtype=torch.float64)
    assert torch.allclose(found.loss_low, low)
    assert torch.allclose(found.loss_high, high)
    assert torch.allclose(found.gradient_change, torch.tensor([1.0, 40.0], dtype=torch.float64))


def test_a_network_by_hand():
    make = lambda: models.MLP(inputs=4, width=5, depth=2, outputs=3)  # noqa: E731
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (9,), generator=generator)
    found = along_the_step(stacks.Stack([models.build(make, 0)]), inputs, targets, [0.7])

    def slope(model):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        parts = torch.autograd.grad(loss, list(model.parameters()))
        return loss.item(), torch.cat([part.flatten() for part in parts])

    model = models.build(make, 0)
    _, before = slope(model)
    torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(model.parameters()) - 0.7 * before, model.parameters()
    )
    loss, after = slope(model)
    change = (after - before).norm().item()
    assert found.loss_low.item() == pytest.approx(loss)
    assert found.gradient_change.item() == pytest.approx(change)
    assert found.smoothness.item() == pytest.approx(change / (0.7 * before.norm().item()))


@pytest.mark.parametrize("distances", [[], [0.1, 0.0], [-1.0]])
def test_refuses_distances(distances):
    with pytest.raises(ValueError, match="distances must be"):
        along_the_step(Bowl(), None, None, distances)


def test_the_meter_looks_every_so_often():
    meter, bowl = LandscapeMeter(None, None, [0.1], every=2), Bowl()
    for _ in range(5):
        meter(bowl)
        bowl.weights *= 0.5
    assert meter.steps == [0, 2, 4]
    path = meter.path()
    assert path.gradient.shape == (2, 3)
    expected = torch.tensor([5.0, 1.25, 0.3125], dtype=torch.float64)
    assert torch.allclose(path.gradient[0], expected)
