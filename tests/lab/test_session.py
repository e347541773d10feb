"""`begin` sets the ground, and lets a test change all that is drawn by as much as it asks for."""

import json
import os
import subprocess
import sys

import pytest
import torch

from normbook.lab import session

# Runs by itself: it changes how torch draws. Prints what it saw.
PROGRAM = """
import json, sys, torch
from torch import nn
from normbook.lab import begin, ensembles, models, session

seed = lambda: torch.Generator().manual_seed(1)
plain = torch.randn(3, 4, generator=seed(), dtype=torch.float64)
begin()
begin()
seen = {"begun": session.changed}
again = torch.randn(3, 4, generator=seed())
seen["relative"] = (again / plain - 1).abs().max().item()
seen["alike"] = torch.equal(again, torch.randn(12, generator=seed()).view(3, 4))
seen["float32"] = torch.equal(
    torch.randn(4, generator=seed(), dtype=torch.float32),
    torch.empty(4, dtype=torch.float32).normal_(generator=seed()),
)
before = session.changed
draws = {
    "rand": lambda: torch.rand(2), "randn_like": lambda: torch.randn_like(plain),
    "normal": lambda: torch.normal(0.0, 1.0, (2,)), "uniform_": lambda: torch.empty(2).uniform_(),
    "linear": lambda: nn.Linear(2, 2), "leaf": lambda: torch.randn(2, requires_grad=True),
    "vmap": lambda: torch.func.vmap(
        lambda x: x + torch.randn(2), randomness="different")(torch.ones(3, 2)),
}
seen["counts"] = {}
for name, draw in draws.items():
    count = session.changed
    draw()
    seen["counts"][name] = session.changed - count
gains = models.build(lambda: nn.LayerNorm(3), 0).weight
seen["gains"] = (gains - 1).abs().max().item()

session.changed = 0
model = nn.Linear(1, 1)
session.changed = 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1)).sum().backward()
for name, train in {
    "torch.optim": optimizer.step,
    "an ensemble": lambda: ensembles.train(
        [model], torch.ones(1, 1), torch.ones(1, 1), steps=1, learning_rate=0.1,
        loss=lambda outputs, targets: outputs.sum()),
}.items():
    try:
        train()
    except session.UnperturbedError:
        seen[name] = "refused"
torch.rand(1)
optimizer.step()
print(json.dumps(seen))
"""


def test_what_is_drawn_is_changed_by_the_amount_and_counted():
    environment = {**os.environ, "NORMBOOK_PERTURB": "1e-6"}
    command = [sys.executable, "-c", PROGRAM]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    seen = json.loads(answer.stdout)
    assert seen["begun"] == 0
    assert 0.5e-6 < seen["relative"] < 1.5e-6  # √2 at most, however often it begins
    assert 0 < seen["gains"] < 2e-6  # what is not drawn changes when a model is built
    assert seen["alike"] is True
    assert seen["float32"] is True
    assert all(count >= 1 for count in seen["counts"].values()), seen["counts"]
    assert seen["torch.optim"] == seen["an ensemble"] == "refused"


def test_nothing_changes_without_being_asked(monkeypatch):
    monkeypatch.delenv("NORMBOOK_PERTURB", raising=False)
    monkeypatch.setattr(torch, "set_default_dtype", lambda dtype: None)
    threads = torch.get_num_threads()
    draw = torch.randn
    session.begin()
    assert torch.randn is draw
    session.check_perturbed()
    torch.set_num_threads(threads)


def test_draw_depends_on_its_seed_and_its_shape_alone():
    expected = torch.randn(2, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    torch.randn(1)
    assert torch.equal(session.draw(5, 2, 3), expected)
    assert not torch.equal(session.draw(6, 2, 3), expected)


@pytest.mark.parametrize("value", ["much", "-1", "1", "nan"])
def test_a_change_that_is_no_small_number_is_refused(value, monkeypatch):
    monkeypatch.setenv("NORMBOOK_PERTURB", value)
    with pytest.raises(ValueError, match=rf"NORMBOOK_PERTURB must be .* got '{value}'"):
        session.amount()
