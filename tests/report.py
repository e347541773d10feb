"""Print what decides a number's last digits: versions, processor, settings. No paths, no names."""

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "numpy", "matplotlib", "scikit-learn", "ipython", "ipykernel", "nbval")
FLAGS = ("sse4_1", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_tile")
SETTINGS = re.compile(r"^(NORMBOOK_|OMP_|MKL_|ONEDNN_|ATEN_|CUBLAS_|CUDA_VISIBLE|PYTORCH_)")


def lines() -> list[str]:
    """Return the report, line by line."""
    import torch

    return [
        f"book: {revision()}",
        f"python: {platform.python_version()} ({platform.python_implementation()})",
        f"system: {platform.system()} {platform.machine()}",
        *(f"{name}: {installed(name)}" for name in PACKAGES),
        f"processor: {processor()}",
        f"torch uses: {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads",
        f"mkl: {torch.backends.mkl.is_available()}, onednn: {torch.backends.mkldnn.is_available()}",
        f"gpu: {torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'none'}",
        *(f"{key}={value}" for key, value in sorted(os.environ.items()) if SETTINGS.match(key)),
    ]


def installed(name: str) -> str:
    """Return a package's version."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def revision() -> str:
    """Return the commit, and whether files differ from it."""
    try:
        answer = subprocess.run(
            ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True
        )
    except OSError:
        return "no git"
    return answer.stdout.strip() or "not a git checkout"


def processor() -> str:
    """Return the processor's name, and which of the instruction sets that matter it has."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or "unknown"
    text = info.read_text(encoding="utf-8", errors="replace")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M)
    have = [flag for flag in FLAGS if flags and flag in flags[1].split()]
    return f"{name[1] if name else platform.machine()} ({' '.join(have) or 'flags unknown'})"


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
