"""Reads the JSON that nccl-tests writes (-J)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TypedDict

from commbench.backends.nccl_library import version_text
from commbench.errors import InputError
from commbench.interop.imports.nccl_tests import (
    conditions,
    half_record,
    operation_of,
)
from commbench.interop.imports.reading import (
    LeftOutError,
    Place,
    Reading,
    number,
)
from commbench.schema import JsonMapping, JsonObject, check_as


class Device(TypedDict, total=False):
    """The first rank of a process."""

    rank: int
    group: int
    hostname: str
    device_info: str


class Config(TypedDict, total=False):
    """How the test was started."""

    nthreads: int
    ngpus: int
    iterations: int
    aggregated_iterations: int
    graph: int
    blocking_collectives: str
    devices: Sequence[Device]


class Result(TypedDict):
    """One line of the table."""

    size: int
    type: str
    redop: str
    root: str


class Report(TypedDict, total=False):
    """The entries of the file that are read."""

    version: int
    args: Sequence[str]
    nccl_version: int
    config: Config
    results: Sequence[Result]


def recognises(text: str) -> bool:
    """Return whether a text is JSON of nccl-tests."""
    head = text.lstrip("\ufeff \r\n\t")
    return head.startswith("{") and '"nccl_version"' in text and '"results"' in text


def read(text: str, reading: Reading) -> None:
    """Read the JSON of one test.

    Raises:
        InputError: the text is not JSON of nccl-tests, or not all of it.
    """
    try:
        report = check_as(Report, json.loads(text))
    except (InputError, ValueError, RecursionError) as error:
        raise InputError(f"{reading.name} is no JSON of nccl-tests ({error}).") from error
    with reading.noting():
        _read_report(report, reading)


def _read_report(report: JsonMapping, reading: Reading) -> None:
    config = report.get("config", {})
    program = PurePath(next(iter(report.get("args", ())), "")).name.removesuffix("_mpi")
    operation = operation_of(program, reading)
    places = _places(config)
    if len({device.get("group", 0) for device in config.get("devices", ())}) > 1:
        raise LeftOutError("several groups ran at the same time and only their average is written")
    if "version" in report:
        reading.version = f"JSON {report['version']}"
    blocking = 0
    if config.get("blocking_collectives") == "true":  # which kind, only the command line says
        blocking = 2 if _option(report, "-z", "--blocking") == "2" else 1
    case, shared = conditions(
        reading,
        operation=operation,
        places=places,
        average=_option(report, "-a", "--average"),
        blocking=blocking,
        graph=bool(config.get("graph")),
    )
    shared["batch"] = config.get("iterations", 1) * config.get("aggregated_iterations", 1)
    if "nccl_version" in report:
        shared["library"] = f"NCCL {version_text(report['nccl_version'])}"
    results = report.get("results")
    if not results:
        raise LeftOutError("the list of results is empty")
    for result in results:
        line = {name: str(result[name]).strip() for name in ("size", "type", "redop", "root")}
        for key, in_place in (("out_of_place", False), ("in_place", True)):
            case["in_place"] = in_place
            if key in result:
                with reading.noting():
                    half, details = _half(result, key)
                    reading.records.append(half_record(case, line, half, **details, **shared))


def _option(report: JsonMapping, short: str, long: str) -> str:
    """Return the last value of an option; empty if the option is missing."""
    words = " ".join(report.get("args", ()))
    found = re.findall(rf"(?<!\S)(?:{short} ?|{long}[ =])(\d+)", words)
    return found[-1] if found else ""


def _half(result: JsonMapping, key: str) -> tuple[dict[str, str], JsonObject]:
    """Return the words of a half of a line, and further arguments of `make_record`.

    Raises:
        LeftOutError: the half has no time.
    """
    half = result[key]
    if not isinstance(half, dict):
        raise LeftOutError(f"{key} is no object")
    if "time" not in half:
        raise LeftOutError("times are of the CPU only (-C)")
    stated: JsonObject = {"repetitions": 1}
    details: JsonObject = {"stated": stated}
    if half.get("nwrong") is not None:
        details["wrong"] = int(number(str(half["nwrong"])))
    iterations = result.get(f"{key}_per_iter")
    if isinstance(iterations, dict) and isinstance(iterations.get("times_us"), list):
        stated["repetitions"] = len(iterations["times_us"])
        for name in ("min_us", "p95_us"):
            if name in iterations:
                stated[name] = number(str(iterations[name]))
    return {"time": str(half["time"])}, details


def _places(config: JsonMapping) -> list[Place]:
    """Return the places of all ranks; the file lists only the first rank of each process."""
    per_process = min(config.get("nthreads", 1) * config.get("ngpus", 1), 10_000)
    places = []
    for device in config.get("devices", ()):
        if "rank" not in device or "hostname" not in device:
            return []
        kind = device.get("device_info", "").strip()
        for rank in range(device["rank"], device["rank"] + per_process):
            places.append(Place(rank, device["hostname"], kind))
    return places
