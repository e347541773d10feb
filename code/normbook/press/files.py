"""Files of the book: where they lie, how they are read, and how they are written whole."""

import hashlib
import os
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]


class PressError(ValueError):
    """The book cannot be made as it stands; the message says which file and why."""


def write_whole(path: Path, text: str | bytes) -> None:
    """Write a file so that it holds the old content or the new, whenever one is interrupted."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_bytes(as_bytes(text))
        os.replace(half, path)
    except OSError as error:
        raise PressError(f"cannot write {path}: {error.strerror}") from error
    finally:
        half.unlink(missing_ok=True)


def write_if_new(path: Path, text: str | bytes) -> None:
    """Write a file whole, unless it holds that already: what depends on it stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != as_bytes(text):
        write_whole(path, text)


def as_bytes(text: str | bytes) -> bytes:
    """Return a text as the bytes of its file."""
    return text if isinstance(text, bytes) else text.encode("utf-8")


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Reads YAML, in C where PyYAML has it, and refuses a key that stands twice."""

    def construct_mapping(self, node, deep=False):
        """Return a mapping; YAML itself would keep the last of two equal keys and say nothing."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value!r} stands twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(path: Path, name: str = ""):
    """Return what a YAML file holds. Raises `PressError` with the file (or `name`) and the line."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name or path.name}:{mark.line + 1 if mark else 1}"
        raise PressError(
            f"{place}: cannot be read as YAML ({getattr(error, 'problem', error)})"
        ) from error


def press_hash(root: Path = ROOT) -> str:
    """Return a digest of the press and its settings: what another one made is made again."""
    sources = [*sorted(Path(__file__).parent.rglob("*.py")), root / "_config.yml"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
