"""The contract as facts: a fact has a name and a value, and a difference between two sets is a sentence."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cases
import observe

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded"
CHANGED = HERE / "changed_words.json"
#: Relative difference up to which two numbers are equal: the order of additions may change, a result may not.
TOLERANCE = 1e-9
#: Keys and columns that hold sentences or lists of short words; these may change once `CHANGED` lists them.
WORDS = frozenset({"case", "doubts", "evidence", "flags", "help", "paragraph", "reason", "remarks", "snippet"}) | {
    *("stderr", "stdout", "suspects_remarks", "text")
}
#: Columns and keys that came later than the record.
ADDED = frozenset(
    {"--visits", "blocks", "disturbed", "framework_us", "live", "repeating_s", "revisiting_s", "safe", "visit"}
    | {"visit_lengths", "visits"}
)
#: A number in a text.
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
#: A larger file is compressed.
MOST_BYTES = 300_000

Value = str | float | bool | None
Facts = dict[str, Value]
Json = Any


# ----------------------------------------------------------------------------------------------- from what is observed


#: Ends the name of a kept run; runs of other names are a person's own.
KEPT_NAME = re.compile(r"_\d{8}$")


def kept_runs() -> dict[str, Path]:
    """Return the runs whose records are kept, by name."""
    roots = {"": observe.REPOSITORY / "results", "made/": HERE / "runs"}
    return {
        f"{prefix}{samples.parent.relative_to(root).as_posix()}": samples.parent
        for prefix, root in roots.items()
        for samples in sorted(root.rglob("samples.jsonl"))
        if prefix or KEPT_NAME.search(samples.relative_to(root).parts[0])
    }


def observed(name: str) -> dict[str, Json]:
    """Return the documents of a part of the contract by file name, as the code produces them."""
    kind, _, rest = name.partition("/")
    if kind == "rows":
        path = kept_runs()[rest]
        tables = {f"{table}.csv": rows for table, rows in observe.rows_of(path).items()}
        return tables | {f"{key}.json": value for key, value in observe.documents_of(path).items()}
    if kind == "help":
        return {f"{rest}.txt": observe.helps()[rest]}
    whole: dict[str, Callable[[], Json]] = {
        "bad_input": lambda: observe.bad_input(rest),
        "printed": lambda: observe.printed(rest),
        "options": lambda: observe.options()[rest],
        "api": lambda: observe.api(_load("api")["api/all"]["api"]),
    }
    return {kind: whole[kind]()}


@functools.cache
def names() -> tuple[str, ...]:
    """Return the parts of the contract that the code has."""
    return (
        *(f"rows/{run}" for run in kept_runs()),
        *(f"help/{words}" for words in observe.helps()),
        *(f"options/{words}" for words in observe.options()),
        *(f"bad_input/{line}" for line in cases.BAD_INPUT),
        *(f"printed/{line}" for line in cases.PRINTED),
        "api/all",
    )


# ----------------------------------------------------------------------------------------------- from and to the files


@functools.cache
def _load(kind: str) -> dict[str, dict[str, Json]]:
    """Return the recorded documents of a kind by part and file name."""
    folder = RECORDED / kind
    found: dict[str, dict[str, Json]] = {}
    if kind == "rows":
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            part = f"rows/{file.parent.relative_to(folder).as_posix()}"
            found.setdefault(part, {})[file.name.removesuffix(".gz")] = _read(file)
    elif kind == "help":
        found = {f"help/{file.stem}": {file.name: file.read_text()} for file in sorted(folder.glob("*.txt"))}
    elif (file := RECORDED / f"{kind}.json").exists():
        document = json.loads(file.read_text())
        if kind == "api":
            found = {"api/all": {kind: document}}
        elif kind == "options":
            found = {f"options/{words}": {kind: value} for words, value in document.items()}
        else:
            found = {f"{kind}/{one['line']}": {kind: one} for one in document}
    return found


KINDS = ("rows", "help", "options", "bad_input", "printed", "api")


def recorded_names() -> list[str]:
    """Return the parts of the contract that were recorded."""
    return [name for kind in KINDS for name in _load(kind)]


def recorded(name: str) -> dict[str, Json]:
    """Return the recorded documents of a part of the contract, by file name."""
    return _load(name.partition("/")[0])[name]


def _read(file: Path) -> Json:
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    text = data.decode()
    return list(csv.DictReader(io.StringIO(text))) if ".csv" in file.suffixes else json.loads(text)


def write(name: str, documents: Mapping[str, Json]) -> None:
    """Record the rows or the help of a part of the contract."""
    kind, _, rest = name.partition("/")
    folder = RECORDED / kind / rest if kind == "rows" else RECORDED / kind
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in documents.items():
        text = value if isinstance(value, str) else _csv(value) if file.endswith(".csv") else to_json(value)
        if len(text) > MOST_BYTES:
            (folder / f"{file}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        else:
            (folder / file).write_text(text)


def to_json(value: Json) -> str:
    """Return a document as the text of a file."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _csv(rows: Sequence[Mapping[str, str]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


# --------------------------------------------------------------------------------------------------------------- facts


def facts_of(name: str, documents: Mapping[str, Json]) -> Facts:
    """Return the facts of a part of the contract."""
    found: Facts = {}
    for file, document in documents.items():
        where = f"{name}/{file}" if name.startswith("rows/") else name
        if name.startswith("help/"):
            found[f"{where}/help"] = document
        elif name.startswith("printed/"):
            found |= _printed_facts(where, document)
        else:
            if file.endswith(".csv"):
                found[f"{where}/columns"] = _recorded_columns(document[0])
            found |= dict(_flat(where, document))
    return found


def _printed_facts(where: str, document: Mapping[str, Json]) -> Facts:
    """Return the cells of a printed table or JSON as facts; of other texts the words, and the numbers in order."""
    found = dict(_flat(where, {key: document[key] for key in ("exit_code", "files", "stderr")}))
    is_csv = "--format csv" in document["line"]
    for place, text in {"stdout": document["stdout"], **document["texts"]}.items():
        inside = f"{where}/{place.removesuffix('.csv')}"
        if text.startswith(("{", "[")):
            found |= dict(_flat(inside.replace("stdout", "json"), json.loads(text)))
        elif is_csv or place.endswith(".csv"):
            for number, block in enumerate(re.split(r"\n\n+", text.strip())):
                rows = list(csv.DictReader(io.StringIO(block)))
                table = f"{inside.replace('stdout', 'csv')}/table {number}"
                found[f"{table}/columns"] = _recorded_columns(block.partition("\n")[0].split(","))
                found |= dict(_flat(table, rows))
        else:
            found[f"{inside}/text"] = text
            found |= {f"{inside}/number {at}": one for at, one in enumerate(NUMBER.findall(text))}
    return found


def _recorded_columns(columns: Iterable[str]) -> str:
    """Return the header of a table without the columns that were added."""
    return ",".join(column for column in columns if column not in ADDED)


def _flat(where: str, value: Json) -> Iterator[tuple[str, Value]]:
    """Yield each leaf of a document with its path, and the length of each list."""
    if isinstance(value, Mapping):
        value = {key: inner for key, inner in value.items() if key not in ADDED}
        yield f"{where}/#", len(value)
        for key, inner in value.items():
            yield from _flat(f"{where}/{key}", inner)
    elif isinstance(value, (list, tuple)):
        yield f"{where}/#", len(value)
        for place, inner in enumerate(value):
            yield from _flat(f"{where}/{place}", inner)
    else:
        yield where, value


def is_words(where: str, value: Value) -> bool:
    """Return whether a fact is a text, which may change."""
    keys = where.split("/")[-2:]  # of a list of sentences, the key stands before the place
    return isinstance(value, (str, type(None))) and not WORDS.isdisjoint(keys)


# ---------------------------------------------------------------------------------------------------------- comparison


def same(one: Value, other: Value) -> bool:
    """Return whether two values are equal: numbers, also in text, up to `TOLERANCE`."""
    if one == other and isinstance(one, bool) == isinstance(other, bool):
        return True
    if any(isinstance(value, bool) or value is None for value in (one, other)):
        return False
    try:
        numbers = float(one), float(other)  # type: ignore[arg-type] # neither is None
    except ValueError:
        return False
    return math.isclose(*numbers, rel_tol=TOLERANCE, abs_tol=0.0)


def differences(before: Facts, now: Facts, changed: Mapping[str, str]) -> list[str]:
    """Return the differences from the record, except texts that ``changed`` lists, and its unused entries."""
    found = []
    for where in dict.fromkeys((*before, *now)):
        old, new = before.get(where, "(absent)"), now.get(where, "(absent)")
        if where in changed:
            if old == changed[where]:
                found.append(f"{where}: {CHANGED.name} lists what was recorded; the entry has no use.")
            if new != changed[where]:
                found.append(f"{where}: {changed[where]!r} is listed in {CHANGED.name}, and now it is {new!r}")
        elif not same(old, new):
            found.append(f"{where}: recorded was {old!r}, and now it is {new!r}")
    return found


def changed_words(before: Facts, now: Facts) -> dict[str, str]:
    """Return the texts that differ from the record."""
    return {
        where: str(now[where])
        for where in before.keys() & now.keys()
        if is_words(where, before[where]) and is_words(where, now[where]) and not same(before[where], now[where])
    }


def listed() -> dict[str, str]:
    """Return the content of ``changed_words.json``."""
    found: dict[str, str] = json.loads(CHANGED.read_text()) if CHANGED.exists() else {}
    return found
