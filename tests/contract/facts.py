"""The contract as facts: a fact has a name and a value, and a difference between two sets is a
sentence.
"""

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
#: Relative difference up to which two numbers are equal: the order of additions may change, a
#: result may not.
TOLERANCE = 1e-9
#: Keys and columns that hold sentences or lists of short words; these may change once `CHANGED`
#: lists them.
WORDS = frozenset(
    {"case", "doubts", "evidence", "flags", "help", "paragraph", "reason", "remarks", "snippet"}
) | {*("stderr", "stdout", "suspects_remarks", "text")}
#: Columns and keys that came later than the record.
ADDED = frozenset(
    {
        "--accept-loss",
        "--as",
        "rank_average_us",
        "time_us_mean",
        "time_us_mean_max",
        "time_us_mean_min",
        "--install-completion",
        "--show-completion",
        "--batched-grad-copy",
        "--broadcast-buffers",
        "--chart",
        "--compile",
        "batched_grad_copy",
        "broadcast_buffers",
        "compile",
        "--env",
        "--expect",
        "--link",
        "--until-decided",
        "looks",
        "options/compare/--time-limit",
        "--visits",
        "altering",
        "blocks",
        "disturbed",
        "env",
        "env_reason",
        "framework_us",
        *(f"api/all/commbench.hooks.{hook}/start" for hook in ("RandomK", "TopK")),
        "api/all/commbench.hooks.PowerSGD/values",
        "options/export/argument 0",  # takes several runs
        "options/run/--bisect",
        "options/run/--racks",
        "options/run/--soak",
        "points",
        "persistent",
    }
    | {
        "live",
        "probes_us",
        "repeating_s",
        "revisiting_s",
        "safe",
        "speedup_fp16",
        "speedup_fp16_ci_high",
    }
    | {
        "speedup_fp16_ci_low",
        "state",
        "state_share",
        "states",
        "unused_parameters",
        "--unused-parameters",
        "visit",
        "visit_lengths",
        "visits",
    }
)
#: A number in a text.
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
#: A larger file is compressed.
MOST_BYTES = 300_000

Value = str | float | bool | None
Facts = dict[str, Value]
Json = Any


# ---------------------------------------------------------------------------- from what is observed


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


# ---------------------------------------------------------------------------- from and to the files


@functools.cache
def _load(kind: str) -> dict[str, dict[str, Json]]:
    """Return the recorded documents of a kind by part and file name."""
    folder = RECORDED / kind
    documents: dict[str, dict[str, Json]] = {}
    if kind == "rows":
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            part = f"rows/{file.parent.relative_to(folder).as_posix()}"
            documents.setdefault(part, {})[file.name.removesuffix(".gz")] = _read(file)
    elif kind == "help":
        documents = {
            f"help/{file.stem}": {file.name: file.read_text()}
            for file in sorted(folder.glob("*.txt"))
        }
    elif (file := RECORDED / f"{kind}.json").exists():
        document = json.loads(file.read_text())
        if kind == "api":
            documents = {"api/all": {kind: document}}
        elif kind == "options":
            documents = {f"options/{words}": {kind: value} for words, value in document.items()}
        else:
            documents = {f"{kind}/{one['line']}": {kind: one} for one in document}
    return documents


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
        text = (
            value
            if isinstance(value, str)
            else _csv(value)
            if file.endswith(".csv")
            else to_json(value)
        )
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


# -------------------------------------------------------------------------------------------- facts


def facts_of(name: str, documents: Mapping[str, Json]) -> Facts:
    """Return the facts of a part of the contract."""
    facts: Facts = {}
    for file, document in documents.items():
        path = f"{name}/{file}" if name.startswith("rows/") else name
        if name.startswith("help/"):
            facts[f"{path}/help"] = document
        elif name.startswith("printed/"):
            facts |= _printed_facts(path, document)
        else:
            if file.endswith(".csv"):
                facts[f"{path}/columns"] = _recorded_columns(document[0])
            facts |= dict(_flat(path, document))
    return facts


def _printed_facts(path: str, document: Mapping[str, Json]) -> Facts:
    """Return the cells of a printed table or JSON as facts.

    Of other texts the words, and the numbers in order.
    """
    facts = dict(_flat(path, {key: document[key] for key in ("exit_code", "files", "stderr")}))
    is_csv = "--format csv" in document["line"]
    for place, text in {"stdout": document["stdout"], **document["texts"]}.items():
        inside = f"{path}/{place.removesuffix('.csv')}"
        if text.startswith(("{", "[")):
            facts |= dict(_flat(inside.replace("stdout", "json"), json.loads(text)))
        elif is_csv or place.endswith(".csv"):
            for number, block in enumerate(re.split(r"\n\n+", text.strip())):
                rows = list(csv.DictReader(io.StringIO(block)))
                table = f"{inside.replace('stdout', 'csv')}/table {number}"
                facts[f"{table}/columns"] = _recorded_columns(block.partition("\n")[0].split(","))
                facts |= dict(_flat(table, rows))
        else:
            facts[f"{inside}/text"] = text
            facts |= {f"{inside}/number {at}": one for at, one in enumerate(NUMBER.findall(text))}
    return facts


def _recorded_columns(columns: Iterable[str]) -> str:
    """Return the header of a table without the columns that were added."""
    return ",".join(column for column in columns if column not in ADDED)


def _flat(path: str, value: Json) -> Iterator[tuple[str, Value]]:
    """Yield each leaf of a document with its path, and the length of each list."""
    if isinstance(value, Mapping):
        value = {
            key: inner for key, inner in value.items() if ADDED.isdisjoint({key, f"{path}/{key}"})
        }
        yield f"{path}/#", len(value)
        for key, inner in value.items():
            yield from _flat(f"{path}/{key}", inner)
    elif isinstance(value, (list, tuple)):
        yield f"{path}/#", len(value)
        for place, inner in enumerate(value):
            yield from _flat(f"{path}/{place}", inner)
    else:
        yield path, value


def is_words(path: str, value: Value) -> bool:
    """Return whether a fact is a text, which may change."""
    keys = path.split("/")[-2:]  # of a list of sentences, the key stands before the place
    return isinstance(value, (str, type(None))) and not WORDS.isdisjoint(keys)


# --------------------------------------------------------------------------------------- comparison


def same(first: Value, other: Value) -> bool:
    """Return whether two values are equal: numbers, also in text, up to `TOLERANCE`."""
    if first == other and isinstance(first, bool) == isinstance(other, bool):
        return True
    if any(isinstance(value, bool) or value is None for value in (first, other)):
        return False
    try:
        numbers = float(first), float(other)  # type: ignore[arg-type] # neither is None
    except ValueError:
        return False
    return math.isclose(*numbers, rel_tol=TOLERANCE, abs_tol=0.0)


def differences(before: Facts, now: Facts, changed: Mapping[str, str]) -> list[str]:
    """Return the differences from the record, except texts that ``changed`` lists, and its unused
    entries.
    """
    sentences = []
    for path in dict.fromkeys((*before, *now)):
        old, new = before.get(path, "(absent)"), now.get(path, "(absent)")
        if path in changed:
            if old == changed[path]:
                sentences.append(
                    f"{path}: {CHANGED.name} lists what was recorded; the entry has no use."
                )
            if new != changed[path]:
                sentences.append(
                    f"{path}: {changed[path]!r} is listed in {CHANGED.name}, and now it is {new!r}"
                )
        elif not same(old, new):
            sentences.append(f"{path}: recorded was {old!r}, and now it is {new!r}")
    return sentences


def changed_words(before: Facts, now: Facts) -> dict[str, str]:
    """Return the texts that differ from the record."""
    return {
        path: str(now[path])
        for path in before.keys() & now.keys()
        if is_words(path, before[path])
        and is_words(path, now[path])
        and not same(before[path], now[path])
    }


def listed() -> dict[str, str]:
    """Return the content of ``changed_words.json``."""
    content: dict[str, str] = json.loads(CHANGED.read_text()) if CHANGED.exists() else {}
    return content
