"""Records what `observe` sees, for `test_contract.py` to compare with.

``python tests/contract/record.py`` records everything; it was run on commit 190edb9, before modules moved.
``python tests/contract/record.py --changed`` lists the texts that differ now in ``changed_words.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import observe

HERE = Path(__file__).parent
TABLES, BEHAVIOUR, CHANGED = HERE / "tables.json", HERE / "behaviour.json", HERE / "changed_words.json"


def behaviour() -> dict[str, Any]:
    """Return answers to bad input, help texts, options and printed figures."""
    return {
        "answers": {line: observe.answer(line) for line in observe.BAD_INPUT},
        "help": {command: observe.help_of(command) for command in observe.commands()},
        "options": {command: observe.options_of(command) for command in observe.commands()},
        "figures": {key: observe.figures_of(line) for key, line in observe.PRINTED.items()},
    }


def texts(found: dict[str, Any]) -> dict[str, str]:
    """Return the texts of a behaviour, which may change if `changed_words.json` lists them."""
    answers = {f"stderr of {line}": one["stderr"] for line, one in found["answers"].items()}
    return answers | {f"help of {command}": text for command, text in found["help"].items()}


def write(path: Path, data: object) -> None:
    """Write JSON that a diff can show."""
    path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Record everything, or with --changed the texts that differ."""
    if "--changed" in sys.argv:
        before, now = texts(json.loads(BEHAVIOUR.read_text(encoding="utf-8"))), texts(behaviour())
        write(CHANGED, {where: text for where, text in now.items() if before.get(where) != text})
        return
    write(BEHAVIOUR, behaviour())
    write(CHANGED, {})
    TABLES.write_text(json.dumps({run: observe.tables_of(run) for run in observe.KEPT}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
