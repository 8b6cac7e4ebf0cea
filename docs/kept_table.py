"""The table of kept runs on docs/evidence.md, from results/claims.toml."""

import json
import sys
from pathlib import Path

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
sys.path.insert(0, str(DOCS.parent / "benchmarks" / "evidence"))

from claims import Claim, read_claims  # noqa: E402 - its folder is named above

#: What the table stands between.
MARK = "<!-- reference runs -->\n"


def evidence_page() -> str:
    """Return the page with its table as it has to be."""
    text = (DOCS / "evidence.md").read_text(encoding="utf-8")
    before, _, after = text.split(MARK)
    return f"{before}{MARK}{kept_table()}{MARK}{after}"


def kept_table() -> str:
    """Return a line for each kept run."""
    lines = ["| what it shows | run | commit | quoted in |", "|---|---|---|---|"]
    for claim in read_claims().values():
        pages = ", ".join(f"[{page}]({page})" for page in claim.quoted)
        run = f"[{claim.name}](../results/{claim.name})"
        lines.append(f"| {claim.claim} | {run} | {_commit(claim)[:7]} | {pages} |")
    return "".join(f"{line}\n" for line in lines)


def _commit(claim: Claim) -> str:
    """Return the commit that measured a run: in run.json, or in a check's own file."""
    folder = RESULTS / claim.name
    file = folder / "run.json"
    if not file.exists():
        file = min(folder.glob("*.json"))
    return str(json.loads(file.read_text(encoding="utf-8"))["git_commit"])
