"""The instruments: what a chapter uses to build models, feed them, measure and show.

Nothing in here is an object of study. A chapter imports the engine as `import normalization as nz`
and from here what it needs; models reach the engine through the same door.
"""

from normbook.lab.claims import claim
from normbook.lab.session import begin
from normbook.lab.values import glue, significant

__all__ = ["begin", "claim", "glue", "show", "significant"]


def __getattr__(name: str):
    """Import `show` when it is asked for: pyplot is slow, and not everyone draws."""
    if name == "show":
        from normbook.lab.figures import show

        return show
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
