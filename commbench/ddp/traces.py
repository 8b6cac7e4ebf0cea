"""Traces: recorded times at which the gradients of a real model are ready, for replay without the
model.

A trace is one JSON file::

    {"format": "commbench-trace", "version": 1, "name": "resnet50", "device": "cpu", "batch": 2,
     "forward_ms": 93.1, "backward_ms": 180.2, "optimizer_ms": 31.5, "recorded": {"how": "...",
     "cpu": "...", ...}, "parameters": [{"name": "0.weight", "shape": [64, 3, 7, 7], "dtype":
     "float32", "ready_ms": 180.1}, ...]}

Parameters are in the order of registration in the model; ``ready_ms`` counts from the start of the
backward pass.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from commbench.errors import InputError
from commbench.schema import JsonMapping

FORMAT, VERSION = "commbench-trace", 1
#: Traces of commbench, in data/traces; benchmarks/record_traces.py recorded them.
SHIPPED = ("bert-base", "gpt2-small", "many-tiny", "resnet50")
DEVICES = ("cpu", "cuda")
#: Method, processor and software of a recording.
Conditions: TypeAlias = Mapping[str, str | int]
DTYPES = ("bfloat16", "float16", "float32", "float64")
_TIMES = ("forward_ms", "backward_ms", "optimizer_ms")
#: 0.1 us: below the precision of the recorded times, and short in the file.
_DECIMALS = 4


@dataclass(frozen=True, kw_only=True)
class TracedParameter:
    """One parameter and the time at which its gradient was ready."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    ready_ms: float
    """Time since the start of the backward pass."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One recorded training step of a model; times are medians over steps, in milliseconds."""

    name: str
    device: str
    """The model's device: ``cpu`` or ``cuda``."""
    batch: int
    """Samples in one batch."""
    forward_ms: float
    backward_ms: float
    optimizer_ms: float
    parameters: tuple[TracedParameter, ...]
    """In the order of registration in the model."""
    recorded: Conditions = field(default_factory=dict)
    """The method and the machine of the recording."""

    @property
    def ready_order(self) -> tuple[int, ...]:
        """Indices into ``parameters`` in the order of readiness; ties: last registered first."""
        ready = [(parameter.ready_ms, -index) for index, parameter in enumerate(self.parameters)]
        return tuple(-negative for _, negative in sorted(ready))

    def save(self, path: Path) -> None:
        """Write the file atomically, one parameter per line."""
        header = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "device": self.device,
            "batch": self.batch,
            **{name: round(getattr(self, name), _DECIMALS) for name in _TIMES},
            "recorded": dict(self.recorded),
        }
        lines = [
            json.dumps(
                {
                    "name": parameter.name,
                    "shape": parameter.shape,
                    "dtype": parameter.dtype,
                    "ready_ms": round(parameter.ready_ms, _DECIMALS),
                }
            )
            for parameter in self.parameters
        ]
        body = ",\n".join(lines)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(
            f'{json.dumps(header)[:-1]},\n"parameters": [\n{body}\n]}}\n', encoding="utf-8"
        )
        part.replace(path)


def load_trace(name_or_path: str) -> Trace:
    """Load one of commbench's traces by its name, or a trace in a file by its path.

    Raises:
        InputError: there is no such trace or file, or the file is no valid trace.
    """
    if name_or_path in SHIPPED:
        text = (
            resources.files("commbench.ddp") / "data" / "traces" / f"{name_or_path}.json"
        ).read_text("utf-8")
    else:
        text = _read(Path(name_or_path))
    try:
        return _parse(json.loads(text))
    except json.JSONDecodeError as error:
        raise InputError(
            f"The trace {name_or_path} is not JSON ({error}): record it again."
        ) from error
    except _BadTraceError as error:
        raise InputError(
            f"The trace {name_or_path} {error}: record it again or correct the file."
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(
            f"There is no trace named {path} and no such file: choose one of {', '.join(SHIPPED)},"
            " or give a file."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"The trace {path} cannot be read ({error}): give a file that is a trace."
        ) from error


class _BadTraceError(Exception):
    """A defect of a trace, as the predicate of a sentence about it."""


def _parse(data: Any) -> Trace:  # noqa: ANN401 - a file may contain anything
    """Return the trace in decoded JSON."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _BadTraceError(f'has no "format": "{FORMAT}"')
    if data.get("version") != VERSION:
        raise _BadTraceError(
            f"is of version {data.get('version')} and this commbench reads version {VERSION}"
        )
    trace = Trace(
        name=_entry(data, "name", str),
        device=_one_of(data, "device", DEVICES),
        batch=_entry(data, "batch", int),
        **{name: _milliseconds(data, name) for name in _TIMES},
        parameters=tuple(_parse_parameter(entry) for entry in _entry(data, "parameters", list)),
        recorded=_entry(data, "recorded", dict),
    )
    if trace.batch < 1:
        raise _BadTraceError(f"has a batch of {trace.batch}, not 1 or more")
    _check_parameters(trace)
    return trace


def _check_parameters(trace: Trace) -> None:
    if not trace.parameters:
        raise _BadTraceError("has no parameters")
    names = [parameter.name for parameter in trace.parameters]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise _BadTraceError(f"names the parameter {repeated} twice")
    for parameter in trace.parameters:
        if parameter.ready_ms > trace.backward_ms:
            raise _BadTraceError(
                f"says that {parameter.name} is ready after {parameter.ready_ms:g} ms and the"
                f" backward pass is over after {trace.backward_ms:g} ms"
            )


def _parse_parameter(entry: Any) -> TracedParameter:  # noqa: ANN401 - a file may contain anything
    if not isinstance(entry, dict):
        raise _BadTraceError(f"has the parameter {entry!r:.40}, which is no object")
    shape = _entry(entry, "shape", list)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in shape):
        raise _BadTraceError(
            f"has a parameter with the shape {shape!r:.40}, not positive whole numbers"
        )
    return TracedParameter(
        name=_entry(entry, "name", str),
        shape=tuple(shape),
        dtype=_one_of(entry, "dtype", DTYPES),
        ready_ms=_milliseconds(entry, "ready_ms"),
    )


def _entry(data: JsonMapping, key: str, kind: type) -> Any:  # noqa: ANN401 - a value of type ``kind``
    value = data.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _BadTraceError(f'has "{key}": {json.dumps(value):.40}, which is no {kind.__name__}')
    return value


def _one_of(data: JsonMapping, key: str, choices: tuple[str, ...]) -> str:
    value = data.get(key)
    if value not in choices:
        raise _BadTraceError(
            f'has "{key}": {json.dumps(value):.40}, not one of {", ".join(choices)}'
        )
    return str(value)


def _milliseconds(data: JsonMapping, key: str) -> float:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise _BadTraceError(f'has "{key}": {json.dumps(value):.40}, which is no time')
    return float(value)
