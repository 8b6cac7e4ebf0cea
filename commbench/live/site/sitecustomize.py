"""Runs at the start of every Python process of a training under ``commbench tune``.

See `commbench.live.adopt`.

Python imports it by its name from the first directory of PYTHONPATH. It must cost nothing in a
process that trains nothing, and must run in any Python: it imports neither commbench nor torch. A
``sitecustomize`` of the site's own follows at the end.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

#: The class of each module whose objects `commbench.live.adopt.take` is given as soon as the
#: process makes one.
WATCHED = {
    "torch.nn.parallel.distributed": "DistributedDataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "FullyShardedDataParallel",
    "torch.distributed.fsdp._fully_shard._fsdp_state": "FSDPState",
    "deepspeed.runtime.engine": "DeepSpeedEngine",
    "horovod.torch.optimizer": "_DistributedOptimizer",
}
#: Variables of launchers that hold the rank of a process, the most specific first.
RANKS = ("HOROVOD_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
#: Name of the file of the function that calls a constructor. `warnings.warn` skips functions of
#: files whose name has these two words. So a warning of the constructor names the script's line.
SKIPPED = "importlib._bootstrap: commbench"
#: Reasons that this process has printed.
SAID: "set[str]" = set()


def rank() -> int:
    """Return the rank of this process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for name in RANKS:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def take(instance: object) -> None:
    """Give an object of a watched class to commbench.

    A failure there must not fail the training.
    """
    try:
        from commbench.live.imports import python_first

        with python_first():
            from commbench.live import adopt
    # This Python may have no commbench, or another one.
    except Exception as error:  # noqa: BLE001
        failure = f"{sys.executable} cannot import commbench ({type(error).__name__}: {error})"
        reason = f"{failure}; install commbench and torch 2.7 or newer there"
    else:
        reason = adopt.take(instance)
    if reason and reason not in SAID and rank() == 0:
        SAID.add(reason)
        try:
            done = "tuned"
            if '"mode": "watch"' in os.environ.get("COMMBENCH_TUNE", ""):
                done = "watched"
            own: Any = sys.__stderr__  # a script may capture sys.stderr
            own.write(f"commbench: the training is not {done}, because {reason}.\n")
            own.flush()
        except Exception:  # noqa: BLE001, S110 - there is no stderr, or nobody reads it
            pass


def watch(watched: type) -> None:
    """Let the constructor of a class give each object to `take` when it has made it."""
    import functools
    import inspect

    constructor = vars(watched)["__init__"]

    def construct(self: object, *arguments: object, **keywords: object) -> None:
        constructor(self, *arguments, **keywords)
        take(self)

    construct.__code__ = construct.__code__.replace(co_filename=SKIPPED)
    functools.update_wrapper(construct, constructor)
    # inspect.getfullargspec, by which scripts look for an argument, follows no wrapper.
    setattr(construct, "__signature__", inspect.signature(constructor))  # noqa: B010 - as below
    setattr(watched, "__init__", construct)  # noqa: B010 - of a class that no type checker sees


def watching(run: "Callable[[ModuleType], None]") -> "Callable[[ModuleType], None]":
    """Return a loader's function that runs a module, and watches the module's class then."""

    def run_and_watch(module: "ModuleType") -> None:
        run(module)
        watched = getattr(module, WATCHED.get(module.__name__, ""), None)
        if watched is not None:
            watch(watched)

    return run_and_watch


class Finder:
    """Watches the classes of `WATCHED` as soon as their modules are imported."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the module's spec as other finders give it.

        Its class is watched when the module has been run.
        """
        if name not in WATCHED:
            return None
        others = [each for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            loader: Any = spec.loader
            loader.exec_module = watching(loader.exec_module)
        return spec


if os.environ.get("COMMBENCH_TUNE"):
    sys.meta_path.insert(0, Finder())
# To import pathlib takes 5 ms.
sys.path[:] = [each for each in sys.path if each != os.path.dirname(__file__)]  # noqa: PTH120
del sys.modules[__name__]
__import__(__name__)  # the site's own; Python takes it well if there is none
