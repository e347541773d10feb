"""Fixtures, and the order in which the files are run."""

import sys

import pytest
from helpers import lay_small_book

from normbook.press.book import Book

LONGEST = ("test_serve", "test_publish", "test_checks_fail", "test_mutations")


def pytest_collection_modifyitems(items):
    """Let the files that take longest begin first: whichever ends last decides."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@pytest.fixture(autouse=True)
def default_dtype_stays():
    """A test that leaves another default dtype behind breaks whichever test comes next."""
    yield
    torch = sys.modules.get("torch")  # the tests of `press` do without it
    if torch is not None:
        left = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        assert left == torch.float32, f"this test left the default dtype at {left}"


@pytest.fixture
def float64():
    """Draw and compute in float64, as a chapter does."""
    import torch

    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def small_book(tmp_path) -> Book:
    """A book of one chapter, `07-small`, not recorded yet."""
    return lay_small_book(tmp_path)
