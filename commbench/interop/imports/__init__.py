"""Imports of other tools' output as runs of commbench."""

from commbench.interop.imports.gathering import TOOLS, Imported, Source, import_outputs
from commbench.interop.imports.reading import ImportOptions

__all__ = ["TOOLS", "ImportOptions", "Imported", "Source", "import_outputs"]
