"""How a run is measured: the options that all commands that measure share, declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Concatenate, get_origin

from commbench.parameters import (
    BindTo,
    CaseTimeout,
    DryRun,
    FailFast,
    Hostfile,
    Interface,
    LauncherArguments,
    LauncherName,
    Out,
    Oversubscribe,
    Ranks,
    RanksPerNode,
    RoleName,
    Seed,
    TimeLimit,
)
from commbench.store import load_run


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about a run but what is measured, and how often; each field from `commbench.parameters` is an option.

    ``--help`` lists the options in this order.
    """

    ranks: Ranks = None
    time_limit: TimeLimit = None
    case_timeout: CaseTimeout = 60.0
    fail_fast: FailFast = False
    out: Out = None
    hostfile: Hostfile = None
    oversubscribe: Oversubscribe = False
    launcher: LauncherName = None
    launcher_arg: LauncherArguments = None
    ranks_per_node: RanksPerNode = None
    bind_to: BindTo = None
    interface: Interface = None
    seed: Seed = None
    dry_run: DryRun = False
    role: RoleName = None
    style: str = "table"
    """How rows are printed; only some commands have an option for it."""

    def known_seed(self) -> int | None:
        """The seed that was given, else that of the run that is to be resumed: its order of cases goes on."""
        if self.seed is not None or self.out is None or not (self.out / "run.json").is_file():
            return self.seed
        seed = load_run(self.out).info.get("seed")
        return seed if isinstance(seed, int) else None


def takes_settings(command: Callable[Concatenate[Settings, ...], int]) -> Callable[..., int]:
    """Decorate a command whose first parameter is the settings: on the command line it takes their options instead.

    They follow its own options. typer finds the options of a command in its signature and its annotations.
    """
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    fields = inspect.signature(Settings, eval_str=True).parameters.values()
    shared = [field for field in fields if get_origin(field.annotation) is Annotated]

    @functools.wraps(command)
    def called(**given: Any) -> int:  # noqa: ANN401 - a value of any option
        settings = Settings(**{option.name: given.pop(option.name) for option in shared})
        return command(settings, **given)

    options = [*own, *shared]
    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # inspect's documented override
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called
