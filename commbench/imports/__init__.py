"""Other tools' output as runs of commbench."""

from commbench.imports.gathering import Imported, Source, import_outputs
from commbench.imports.reading import Asked
from commbench.imports.registry import TOOLS

__all__ = ["TOOLS", "Asked", "Imported", "Source", "import_outputs"]
