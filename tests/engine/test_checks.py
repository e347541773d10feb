"""The questions that functions ask of their arguments, where no function's own tests ask them."""

import pytest

from normbook.engine.checks import require_choice, require_positive


def test_a_choice_is_one_of_the_known_names():
    for known in (("adam", "sgd"), {"adam": 1, "sgd": 2}, iter(["adam", "sgd"])):
        require_choice("optimizer", "sgd", known)
    with pytest.raises(ValueError, match=r"^optimizer must be one of 'adam', 'sgd', got 'lion'$"):
        require_choice("optimizer", "lion", iter(["adam", "sgd"]))


def test_above_0_leaves_0_out():
    require_positive("beta", 1e-300)
    for value in (0, 0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"^beta must be .*, got {value}$"):
            require_positive("beta", value)
