"""Options of earlier versions: each is refused for one version with what takes its place."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.errors import InputError

IMB_TEXT = (
    "use the table, or csv with IMB's t_min, t_max and t_avg as time_us_mean_min, time_us_mean_max"
    " and time_us_mean"
)

#: What to do instead, by command and option, or by command, option and value.
REMOVED: dict[str, str] = {
    "run --bisect": (
        "measure the pairs of hosts with `commbench run matrix`, or groups of ranks with --pattern"
    ),
    "run --racks": (
        "measure the pairs of hosts with `commbench run matrix`, or groups of ranks with --pattern"
    ),
    "predict --chart": "`predict` forecasts the step of each hook at the rates of `--rate`",
    "export --format history": (
        "use `compare` with several baselines; Prometheus and MLflow keep the times of many runs"
    ),
    "bench --format imb": IMB_TEXT,
    "report --format imb": IMB_TEXT,
    "run --format imb": IMB_TEXT,
    "report --terminal": "use the tables that `report` prints, or the page's curves",
    "train --max-loss-increase": (
        "use --max-accuracy-loss, which also judges a metric; the loss after equal steps stands in"
        " the table"
    ),
}


def refuse_removed(arguments: Sequence[str]) -> None:
    """Raise for the first option, or value of one, that an earlier version had.

    Args:
        arguments: The words after ``commbench``; those after ``--`` belong to another program.

    Raises:
        InputError: one of them is such an option of the command.
    """
    if not arguments:
        return
    command, *words = arguments
    if "--" in words:
        words = words[: words.index("--")]
    for place, word in enumerate(words):
        option, separator, value = word.partition("=")
        if not separator:
            value = "".join(words[place + 1 : place + 2])
        for removed in (f"{command} {option}", f"{command} {option} {value}"):
            if removed in REMOVED:
                raise InputError(f"`{removed}` was removed: {REMOVED[removed]}.")
