"""Numbers in the book: how they are written, and how a cell hands one to a sentence."""

import math

from IPython.display import display

# The prefix under which MyST-NB looks for glued values; no notebook reader draws it.
PREFIX = "application/papermill.record/"


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits: 1234.5 is "1230", 0.5 is "0.500".

    Plain notation from 0.001 up to a million, powers of ten outside (1.00e-12). Raises
    `ValueError` when fewer than one digit is asked for.
    """
    if digits < 1:
        raise ValueError(f"digits must be at least 1, got {digits}")
    value = float(value)
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    exponent = int(power)
    if -3 <= exponent < 6:
        return f"{float(f'{mantissa}e{power}'):.{max(digits - 1 - exponent, 0)}f}"
    return f"{mantissa}e{exponent}"


def glue(name: str, value: float | str, digits: int = 3) -> None:
    """Store `value` under `name`, for ``{glue:text}`name` `` in the prose of the same chapter.

    A number is stored with `digits` significant digits, a string as it is. Raises `TypeError` for
    anything else, and `ValueError` for an empty name.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name must be a non-empty string, got {name!r}")
    if not isinstance(value, str):
        try:
            value = significant(float(value), digits)
        except (TypeError, ValueError) as error:
            raise TypeError(f"value must be a number or a string, got {value!r}") from error
    display(
        {PREFIX + "text/plain": repr(value)},  # quoted, or MyST-NB would write 0.280 as 0.28
        metadata={"scrapbook": {"name": name, "mime_prefix": PREFIX}},
        raw=True,
    )
