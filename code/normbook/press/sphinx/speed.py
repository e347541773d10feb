"""What Sphinx would do again at each build, or with PyTorch imported, done once and without."""

from importlib.util import find_spec
from typing import ClassVar

from pybtex.plugin import find_plugin, register_plugin
from sphinx.pycode import ModuleAnalyzer

imported_source_of = ModuleAnalyzer.get_module_source


def source_of(module: str) -> tuple[str, str]:
    """Return where a module's source lies, and the source.

    Sphinx would import our modules to learn it, and PyTorch with them, at each build.
    """
    if module.partition(".")[0] not in ("normalization", "normbook"):
        return imported_source_of(module)
    found = find_spec(module)
    return found.origin, found.loader.get_source(module)


class CachedStyle(find_plugin("pybtex.style.formatting", "alpha")):
    """The style of the references; each is formatted once, and not twice at every build."""

    formatted: ClassVar[dict] = {}

    def format_entry(self, label: str, entry, bib_data=None):
        """Return a reference as it is printed."""
        key = label, repr(entry)
        if key not in self.formatted:
            self.formatted[key] = super().format_entry(label, entry, bib_data)
        return self.formatted[key]


def speed_up() -> None:
    """Put all of it in Sphinx's and Pybtex's way."""
    ModuleAnalyzer.get_module_source = staticmethod(source_of)
    # without this every citation looks through all installed packages for its backend
    backend = "pybtex.backends", "plaintext"
    register_plugin(*backend, find_plugin(*backend), force=True)
    register_plugin("pybtex.style.formatting", "normbook", CachedStyle, force=True)
