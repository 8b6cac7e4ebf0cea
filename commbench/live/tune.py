"""The programme of a training that is tuned: the settings to try, and with which every rank trains
next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.models import parameter_facts
from commbench.ddp.plan.cases import CONFIRM, SWEEP, TrainingCase, setting_name
from commbench.ddp.plan.layout import candidate_caps, unique_layouts
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.engine.records import without_result
from commbench.findings import Finding, as_text
from commbench.hooks.registry import NONE, parse_hook
from commbench.live.agreement import Measured
from commbench.live.options import LiveOptions, say
from commbench.live.programme import Programme
from commbench.live.run import Facts
from commbench.live.switching import live_switches
from commbench.results.recommendation import setting_of
from commbench.results.record_types import training_records
from commbench.results.verdict import verdict_findings
from commbench.tuner.experiment import UNTIMED, Block, Earlier, Experiment
from commbench.tuner.learning import withheld
from commbench.units import counted

#: A step is disturbed if the gap behind its optimiser exceeds the usual gap by this factor and by
#: this share of a step.
GAP_FACTOR, GAP_SHARE = 3.0, 0.1
#: Bucket sizes that are tried without a hook, and with each hook that is allowed besides.
CAPS, CAPS_WITH_HOOK = 7, 4


class Tune(Programme):
    """Finds the best setting.

    Arguments and errors as of `Programme`.
    """

    def __init__(
        self, ddp_model: DistributedDataParallel, options: LiveOptions, facts: Facts
    ) -> None:
        original = facts.original
        settings = settings_of(facts, ddp_model.module, options)
        super().__init__(ddp_model, options, facts, settings)
        info = self.run.info
        unusable = [n for n, case in enumerate(settings) if withheld(case, original, info)]
        self._experiment = Experiment(
            settings,
            seed=options.seed + self.run.launch,
            max_steps=options.steps,
            time_limit_s=options.time_limit_s,
            withheld=unusable,
            earlier=self._earlier(),
        )
        self._gaps_ms: list[float] = []
        say(
            f"tuning {type(ddp_model.module).__name__} on {counted(original.world_size, 'rank')}: "
            f"{counted(len(settings), 'setting')}, results in {options.out}"
        )

    def _earlier(self) -> Earlier:
        """Return what earlier launches of the run confirmed."""
        rounds, compared = [], set()
        for record in training_records(self.run.records):
            if record.case.phase != CONFIRM or record.status != "ok":
                continue
            case = dataclasses.replace(record.case, phase=SWEEP)
            if case == self.settings[0]:
                rounds.append(len(record.block_lengths))
            elif case in self.settings:
                compared.add(self.settings.index(case))
        return Earlier(rounds=rounds, compared=compared)

    def next_block(self, step: int, *, is_ahead: bool) -> Block | None:
        """Return the next block; None at the end of the round or of the experiment."""
        block = self._experiment.next_block(step, self._passed_s, is_ahead=is_ahead)
        if block is not None:
            part = "trying"
            if block.phase == CONFIRM:
                part = "confirming"
            name = self._name_of(self.settings[block.setting])
            say(f"step {step}, {part} {name}", is_passing=True)
        return block

    def add_block(self, block: Block, measured: Measured) -> None:
        """Enter a block with milliseconds of each step and of the gap in it, and its loss."""
        steps_ms, gaps_ms, _ = measured.times.max(axis=0).T
        losses = measured.times[0, :, 2]
        if not np.isnan(losses).all():
            self.run.add_losses(measured.at, losses.tolist())
        case = dataclasses.replace(self.settings[block.setting], phase=block.phase)
        if not measured.is_finite:
            self.leave_out(case, str(Finding("unfit_gradients")))
            return
        self._gaps_ms += gaps_ms.tolist()
        usual = float(np.median(self._gaps_ms))
        limit = max(GAP_FACTOR * usual, usual + GAP_SHARE * float(np.median(steps_ms)))
        is_timed = gaps_ms <= limit  # no evaluation, checkpoint or stall of the data
        is_timed[:UNTIMED] = False
        timed_ms = steps_ms[is_timed].tolist()
        if block.is_measured_by(timed_ms):
            self._write_block(
                case,
                step_ms=timed_ms,
                block_lengths=[len(timed_ms)],
                block_at=[measured.at],
                rounds=[block.round],
                bucket_bytes=measured.buckets,
                measuring_s=float(steps_ms.sum()) / 1e3,
            )
        self._experiment.add(block, timed_ms)

    def leave_out(self, setting: TrainingCase, reason: str) -> None:
        """Leave out a setting that a rank could not prepare, or whose gradients are not finite."""
        say(f"{self._name_of(setting)} is left out: {reason}")
        record = self._record(setting)
        self.run.append(without_result(record, "failed", Finding.stated(reason)))
        self._experiment.leave_out(self.settings.index(dataclasses.replace(setting, phase=SWEEP)))

    def finish(self, step: int) -> TrainingCase:
        """Conclude, and return the best setting."""
        del step
        is_first = not self.run.is_concluded  # else a rank could not prepare the best setting
        conclusion = self.run.conclude(self._experiment.ending)
        text = "nothing was compared, so the setting stays."
        if conclusion is not None:
            text = as_text(verdict_findings(conclusion)[:2])
        self._say_end(text)
        if is_first and conclusion is not None and conclusion.verdict == "change":
            best = setting_of(conclusion.best)
            for setting in self.settings:
                if setting_of(setting) == best:
                    return setting
        return self.settings[0]

    def _name_of(self, setting: TrainingCase) -> str:
        """Return a setting in words, beside the script's own."""
        return setting_name(setting, self.settings[0])


# The settings


def settings_of(facts: Facts, model: nn.Module, options: LiveOptions) -> list[TrainingCase]:
    """Return the settings to try, the script's own first.

    No two differ only in a size that makes the same buckets.

    A script with a communication hook of its own keeps it: then no other hook is tried. Nor is one
    tried with a GradScaler, whose scale a hook would have to know.
    """
    parameters = parameter_facts(model)
    reverse = tuple(reversed(range(len(parameters))))  # the usual order of backward passes
    workload = WorkloadFacts(parameters=parameters, ready_order=reverse)
    original = facts.original
    hooks = [hook for hook in options.allow if hook != NONE]
    if hooks and facts.traits:
        say(f"no hook is tried, because the model has {' and '.join(facts.traits)} gradients.")
    if facts.traits or facts.has_own_hook or original.precision == "amp-fp16":
        hooks = []
    settings = [original]
    for cap in _caps(original, options, workload, CAPS):
        settings.append(dataclasses.replace(original, bucket_cap_mb=cap))
    switches = live_switches()
    if _has_gradient_hooks(model):
        switches = []  # they may change gradients that DDP copies late if it copies in batches
    for switch in switches:
        turned: dict[str, Any] = {switch.name: not getattr(original, switch.name)}
        settings.append(dataclasses.replace(original, **turned))
    for hook in hooks:
        hooked = dataclasses.replace(original, **parse_hook(hook))
        for cap in _caps(original, options, workload, CAPS_WITH_HOOK):
            settings.append(dataclasses.replace(hooked, bucket_cap_mb=cap))
    return list(dict.fromkeys(settings))


def _has_gradient_hooks(model: nn.Module) -> bool:
    """Return whether the script has registered hooks on the gradients of parameters.

    Live tuning has one on each parameter that DDP has registered.
    """
    for parameter in model.parameters():
        on_sums = parameter._post_accumulate_grad_hooks or ()  # noqa: SLF001 - no public name
        if parameter._backward_hooks or len(on_sums) > 1:  # noqa: SLF001 - as above
            return True
    return False


def _caps(
    original: TrainingCase, options: LiveOptions, workload: WorkloadFacts, most: int
) -> Sequence[str]:
    """Return the bucket sizes to try, the script's own first."""
    caps = options.bucket_cap_mb or candidate_caps(workload, most=most)
    return unique_layouts([original.bucket_cap_mb, *caps], workload)
