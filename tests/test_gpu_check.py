"""The device choice, with a stand-in for a GPU: no machine of the book's makers has one."""

import os
import subprocess

import pytest
import torch
from helpers import ROOT

from normbook.lab import pick_device


@pytest.fixture
def two_gpus(monkeypatch):
    """As if there were two GPUs."""
    monkeypatch.delenv("NORMBOOK_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_a_gpu_is_picked_where_there_is_one(two_gpus, monkeypatch):
    assert pick_device() == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device() == torch.device("cpu")


@pytest.mark.parametrize("wanted", ["cpu", "cuda", "cuda:1"])
def test_the_wanted_device_is_picked(two_gpus, monkeypatch, wanted):
    monkeypatch.setenv("NORMBOOK_DEVICE", wanted)
    assert pick_device() == torch.device(wanted)


@pytest.mark.parametrize("wanted", ["gpu", "mps", "cpu:0", "cuda:x", "cuda:2"])
def test_other_devices_are_refused(two_gpus, monkeypatch, wanted):
    monkeypatch.setenv("NORMBOOK_DEVICE", wanted)
    says = "has 2 CUDA devices" if wanted == "cuda:2" else "'cuda' or 'cuda:N'"
    with pytest.raises(ValueError, match=f"NORMBOOK_DEVICE must be .*{says}, got '{wanted}'"):
        pick_device()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_gpu_check_says_that_there_is_no_gpu(tmp_path):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = ["make", "-o", ".venv/.ready", "-o", "code/normbook/lab/claims.json", "gpu-check"]
    answer = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True)
    assert answer.returncode != 0
    assert "gpu-check needs a CUDA GPU" in answer.stdout
    assert "pytest" not in answer.stdout
