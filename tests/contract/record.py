"""Record what commbench does, after a deliberate change: ``python tests/contract/record.py``.

``git diff tests/contract`` then shows what changed. The command lines of ``exit_codes.json`` are
written by hand; the others stand in ``observe.py``.
"""

import json
import shutil

import observe

from commbench.results import load_run

FOLDER = observe.RECORDED


def record() -> None:
    """Write all records again."""
    for name in observe.DECIDED:
        run = load_run(observe.REPOSITORY / "results" / name)
        observe.decision_of(run).to_csv(FOLDER / "decisions" / f"{name}.csv", index=False)
    (FOLDER / "options.json").write_text(json.dumps(observe.options(), indent=1) + "\n")
    exit_codes = FOLDER / "exit_codes.json"
    codes = {line: observe.run(line)[0] for line in json.loads(exit_codes.read_text())}
    exit_codes.write_text(json.dumps(codes, indent=1) + "\n")
    shutil.rmtree(FOLDER / "printed", ignore_errors=True)
    (FOLDER / "printed").mkdir()
    for file, line in observe.PRINTED.items():
        (FOLDER / "printed" / file).write_text(observe.run(line)[1])


if __name__ == "__main__":
    record()
