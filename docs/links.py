"""For mkdocs: makes pages of the Markdown files outside docs/, and leads links to other files to
the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: Files outside docs/ that become pages, by the page.
OUTSIDE = {
    "kept-runs.md": "results/README.md",
    "benchmarks.md": "benchmarks/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
    "overview.md": "README.md",
}
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside docs/."""
    from mkdocs.structure.files import File

    for page, source in OUTSIDE.items():
        file = File.generated(config, page, content=(ROOT / source).read_text("utf-8"))
        file.inclusion = type(file.inclusion).NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Lead each link that leaves docs/ to its page, else to the repository.

    Without one only its text stays.
    """
    source = OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    pages = {path: name for name, path in OUTSIDE.items()}

    def target(match: re.Match[str]) -> str:
        path, anchor = (
            posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1])),
            match[2] or "",
        )
        if path in pages:
            return f"]({pages[path]}{anchor})"
        if path.startswith("docs/"):
            return f"]({path.removeprefix('docs/')}{anchor})"
        return (
            f"]({config.repo_url.rstrip('/')}/blob/HEAD/{path}{anchor})" if config.repo_url else "]"
        )

    return re.sub(r"(?<!!)\[([^\]]*)\](?!\()", r"[\1]", LINK.sub(target, markdown))
