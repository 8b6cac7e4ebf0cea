"""Record what commbench does; `test_contract.py` compares later code with the record.

``python tests/contract/record.py`` records everything from scratch. It was run on commit 190edb9,
before the code was
rearranged: do not run it again to make a failing test pass.

``python tests/contract/record.py --changed`` rewrites ``changed_words.json``, the list of texts
that differ from the record. It exits with 1 if anything but a text differs, which is a mistake in
the code.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any

import facts


def record_all() -> None:
    """Write everything under ``recorded/`` again, and an empty list of changed texts."""
    shutil.rmtree(facts.RECORDED, ignore_errors=True)
    together: dict[str, Any] = {"bad_input": [], "printed": [], "options": {}}
    for name in facts.names():
        documents = facts.observed(name)
        kind, _, rest = name.partition("/")
        if kind in {"rows", "help"}:
            facts.write(name, documents)
        elif kind == "options":
            together[kind][rest] = documents[kind]
        elif kind == "api":
            together[kind] = documents[kind]
        else:
            together[kind].append(documents[kind])
    for kind, document in together.items():
        (facts.RECORDED / f"{kind}.json").write_text(facts.to_json(document))
    facts.CHANGED.write_text(facts.to_json({}))


def list_changed_words() -> int:
    """Rewrite the list of changed texts; print all other differences and return their number."""
    changed: dict[str, str] = {}
    others: list[str] = []
    for name in facts.recorded_names():
        if name not in facts.names():
            others.append(f"{name} is gone")
            continue
        before = facts.facts_of(name, facts.recorded(name))
        now = facts.facts_of(name, facts.observed(name))
        words = facts.changed_words(before, now)
        changed |= words
        others += facts.differences(before, now, words)
    facts.CHANGED.write_text(facts.to_json(dict(sorted(changed.items()))))
    sys.stderr.writelines(f"{line}\n" for line in others)
    sys.stdout.write(f"{len(changed)} changed texts, {len(others)} other differences\n")
    return len(others)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Record what commbench does, or list which texts have changed."
    )
    parser.add_argument("--changed", action="store_true", help="rewrite changed_words.json alone")
    if parser.parse_args().changed:
        sys.exit(bool(list_changed_words()))
    record_all()
