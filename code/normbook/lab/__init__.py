"""The instruments: what several chapters use to build models, feed them, measure and show.

Nothing in here is an object of study. A chapter imports the engine as `import normalization as nz`,
from here what it needs, and what it alone sets up from its own room in `normbook.studies`; all of
them reach the engine through the same door.
"""

from normbook.lab.claims import claim, exponent, glue, significant
from normbook.lab.session import begin, draw, pick_device

__all__ = ["begin", "claim", "draw", "exponent", "glue", "pick_device", "show", "significant"]


def __getattr__(name: str):
    """Import `show` when it is asked for: pyplot is slow, and not everyone draws."""
    if name == "show":
        from normbook.lab.figures import show

        return show
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
