"""The engine's tests can fail: each of these breakages turns one of them red.

The engine is copied, a line of it broken, and the tests of that file run against the copy.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

SWAP = {
    '"pre": Placement': '"was_pre": Placement',
    '"post": Placement': '"pre": Placement',
    '"was_pre": Placement': '"post": Placement',
}
MUTATIONS = {
    "layer_norm uses the unbiased variance": (
        "layer_norms.py",
        {
            "torch.rsqrt(variance + eps)\n    return apply_affine(normalized, weight, bias)": (
                "torch.rsqrt(variance * centered[0].numel() / (centered[0].numel() - 1) + eps)\n"
                "    return apply_affine(normalized, weight, bias)"
            )
        },
        "test_layer_norms.py::test_layer_norm_is_pytorchs",
    ),
    "rms_norm puts eps outside the root": (
        "layer_norms.py",
        {
            "* torch.rsqrt(mean_square(x, axes) + eps)": "/ (mean_square(x, axes).sqrt() + eps)",
        },
        "test_layer_norms.py::test_rms_norm_is_pytorchs",
    ),
    "BatchNorm stores the biased running variance": (
        "batch_norms.py",
        {"variance.reshape(-1) * (count / (count - 1))": "variance.reshape(-1)"},
        "test_batch_norms.py::test_batch_norm_is_pytorchs_in_training_and_evaluation",
    ),
    "group_norm takes its statistics over the channels alone": (
        "group_norms.py",
        {"tuple(range(2, groups.dim()))": "(2,)"},
        "test_group_norms.py::test_group_norm_is_pytorchs",
    ),
    "RMSNorm's backward forgets the scale": (
        "backward.py",
        {"inverse * _remove_scale(scaled, normalized, axes)": "inverse * scaled"},
        "test_backward.py::test_rms_norm",
    ),
    "the output norm of a sandwich is left out": (
        "residuals.py",
        {"r.post_norm(r.branch(r.norm(x)))": "r.branch(r.norm(x))"},
        "test_residuals.py::test_output_norms_by_number",
    ),
    "the placements are swapped": (
        "residuals.py",
        SWAP,
        "test_residuals.py::test_placements_by_number",
    ),
    "DeepNorm's alpha scales the branch": (
        "residuals.py",
        {"self.skip_scale * skip + write": "skip + self.skip_scale * write"},
        "test_residuals.py::test_scales_by_number",
    ),
}


def break_engine(folder: Path, file: str, replacements: dict[str, str]) -> None:
    """Copy `code/` into a folder and replace text in one file of the engine, each piece once."""
    shutil.copytree(
        ROOT / "code", folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    path = folder / "normbook" / "engine" / file
    text = path.read_text(encoding="utf-8")
    for old, new in replacements.items():
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {file}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def run_tests(code: Path, test_file: str) -> subprocess.CompletedProcess:
    """Run one test file up to its first failure, against the engine in `code`."""
    options = ["-x", "-q", "--noconftest", "-p", "no:cacheprovider", "--tb=no"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take longer than the tests
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"tests/engine/{test_file}"],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_engine_turns_its_tests_red(name, tmp_path):
    file, replacements, expected = MUTATIONS[name]
    break_engine(tmp_path / "code", file, replacements)
    done = run_tests(tmp_path / "code", expected.split("::")[0])
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"\b1 failed\b", done.stdout), done.stdout
    assert "error" not in done.stdout.splitlines()[-1], done.stdout
    assert expected in done.stdout, done.stdout
