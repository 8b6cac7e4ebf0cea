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
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from commbench.errors import InputError
from commbench.schema import LARGEST, Limits, read_as

#: Traces of commbench, in data/traces; benchmarks/evidence/record_traces.py recorded them.
SHIPPED = ("bert-base", "gpt2-small", "many-tiny", "resnet50")
_Count = Annotated[int, Limits(low=1, high=LARGEST)]


@dataclass(frozen=True, kw_only=True)
class TracedParameter:
    """One parameter and the time at which its gradient was ready."""

    name: str
    shape: tuple[_Count, ...]
    dtype: Literal["bfloat16", "float16", "float32", "float64"]
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
    device: Literal["cpu", "cuda"]
    """The model's device."""
    batch: _Count
    """Samples in one batch."""
    forward_ms: float
    backward_ms: float
    optimizer_ms: float
    parameters: tuple[TracedParameter, ...]
    """In the order of registration in the model."""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """The method, the processor and the software of the recording."""
    format: Literal["commbench-trace"] = "commbench-trace"
    version: Literal[1] = 1

    @property
    def ready_order(self) -> tuple[int, ...]:
        """Indices into ``parameters`` in the order of readiness; ties: last registered first."""
        ready = [(parameter.ready_ms, -index) for index, parameter in enumerate(self.parameters)]
        return tuple(-negative for _, negative in sorted(ready))

    def checked(self) -> Trace:
        """Return the trace if its parameters fit each other and the backward pass.

        Raises:
            InputError: there is none, a name is repeated, or a gradient is ready too late.
        """
        if not self.parameters:
            raise InputError("it has no parameters")
        names = set()
        for parameter in self.parameters:
            if parameter.name in names:
                raise InputError(f"it names the parameter {parameter.name} twice")
            names.add(parameter.name)
            if parameter.ready_ms > self.backward_ms:
                raise InputError(
                    f"{parameter.name} is ready after {parameter.ready_ms:g} ms, and the backward"
                    f" pass is over after {self.backward_ms:g} ms"
                )
        return self


def load_trace(name_or_path: str) -> Trace:
    """Load one of commbench's traces by its name, or a trace in a file by its path.

    Raises:
        InputError: there is no such trace or file, or the file is no valid trace.
    """
    file: Any = Path(name_or_path)
    if name_or_path in SHIPPED:
        file = resources.files("commbench.ddp") / "data" / "traces" / f"{name_or_path}.json"
    try:
        data = json.loads(file.read_bytes())
        return read_as(Trace, data).checked()
    except FileNotFoundError as error:
        raise InputError(
            f"There is no trace named {name_or_path} and no such file: choose one of"
            f" {', '.join(SHIPPED)}, or give a file."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"The trace {name_or_path} cannot be read ({error}): give a file that is a trace."
        ) from error
    except (ValueError, RecursionError, InputError) as error:
        raise InputError(
            f"The trace {name_or_path} is not understood ({error}): record it again or correct the"
            " file."
        ) from error
