"""The terms of ``run --soak``: the same cases for hours, in one launch after another."""

from __future__ import annotations

import math
from dataclasses import replace

from commbench.cli.request import Place
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.errors import InputError
from commbench.results.plan import RunRequest
from commbench.units import parse_duration

#: The shortest soak, in seconds: start-up takes some of it.
SHORTEST_S = 10.0
#: A launch lasts a minute, so that start-up is a small share; of a short soak a sixth, so that
#: there is an interval.
LAUNCH_S, LEAST_LAUNCH_S, LEAST_LAUNCHES = 60.0, 10.0, 6
#: A long soak has about this many launches, longer ones: they bound the disk space.
MOST_LAUNCHES = 100
#: The most visits of a case in a launch, points of the time line, and the shortest visit in
#: seconds.
MOST_VISITS, VISIT_S = 12, 1.0
#: The least time for a case in a launch, in seconds.
LEAST_SLICE_S = 0.2


def parse_soak(text: str) -> float:
    """Return the duration of a soak in seconds.

    Raises:
        InputError: it is not understood or too short.
    """
    seconds = parse_duration(text)
    if seconds < SHORTEST_S:
        raise InputError(f"--soak {text} is too short; give at least {SHORTEST_S:g} s.")
    return seconds


def as_soak(request: RunRequest, soak_s: float, place: Place) -> RunRequest:
    """Return the request for the same cases until the time is up.

    Raises:
        InputError: the ranks run already, a case is a matrix, or there are several environments.
    """
    if place.started:
        raise InputError(
            "--soak starts ranks again and again, and these are started already; run it outside"
            " mpirun."
        )
    if len(request.envs) > 1:
        raise InputError(
            "--soak measures under one environment; give --env one value, or leave it out."
        )
    if any(isinstance(case, Case) and case.pattern == MATRIX for case in request.cases):
        raise InputError(
            "--soak takes no pattern matrix, which has no time line; name another --pattern."
        )
    cases = len(request.cases)
    launch_s = max(length_of_launch_s(soak_s), LEAST_SLICE_S * cases)
    slice_s = launch_s / cases
    budget = replace(
        request.budget,
        launches=max(1, round(soak_s / launch_s)),
        slice_s=slice_s,
        visits=max(1, min(MOST_VISITS, int(slice_s / VISIT_S))),
        is_soak=True,
    )
    return replace(request, budget=budget, soak_s=soak_s)


def length_of_launch_s(soak_s: float) -> float:
    """Return the length of a launch in seconds: a minute, less in a short soak, more in a long
    one.
    """
    shorter = max(LEAST_LAUNCH_S, soak_s / LEAST_LAUNCHES)
    return math.ceil(max(min(LAUNCH_S, shorter), soak_s / MOST_LAUNCHES))
