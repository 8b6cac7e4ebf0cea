"""Why something is not predicted: a code, its parameters, and the sentence that both make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from commbench.errors import InputError

Code = Literal[
    "algorithm_unknown",
    "hook_unmeasured",
    "hosts_incomplete",
    "invalid",
    "links_unmeasured",
    "operation_unmeasured",
    "ranks_per_host_differ",
    "start_up_unmeasured",
    "top_k_unmeasured",
    "within_host_unmeasured",
]

#: The sentence of each code; fields are the subject and the parameters.
SENTENCES: Mapping[Code, str] = MappingProxyType(
    {
        "algorithm_unknown": (
            "{subject} of {size} on {ranks} ranks is not predicted: which algorithm the library takes there is not "
            "known, and {algorithms} differ by a factor of {factor}; measure it on more ranks."
        ),
        "hook_unmeasured": (
            "A step with hook {subject} was to be predicted, but only {hooks} can be: measure one setting of it first, "
            "and the collectives that it uses."
        ),
        "hosts_incomplete": (
            "{subject}{pattern} needs two or more hosts of {ranks_per_node} ranks; {ranks} ranks make none."
        ),
        "invalid": "{sentence}",
        "links_unmeasured": (
            "{subject}{pattern} was measured within one host and is not predicted for {ranks} ranks on hosts of "
            "{ranks_per_node}: nothing is known of links between hosts; give --rate, or measure across hosts."
        ),
        "operation_unmeasured": (
            "Nothing is known of {subject} of {dtype}; measure it: commbench run --backend {backend} --collective "
            "{operation} --dtype {dtype} --sizes 64K:64M:4."
        ),
        "ranks_per_host_differ": (
            "{subject}{pattern} was measured with {measured_ranks_per_node} ranks on a host and is not predicted for "
            "{ranks_per_node}: how often its messages share a link is not known; measure it so."
        ),
        "start_up_unmeasured": (
            "{prediction} is not predicted across hosts: it is mostly start-up, which was measured within one host "
            "alone; measure across hosts."
        ),
        "top_k_unmeasured": (
            "Whether top-k pays is not predicted, since no top-k was trained or no all_gather measured, which it uses: "
            "train with --hook none,topk:0.01, and measure with commbench run -c all_gather."
        ),
        "within_host_unmeasured": (
            "{subject}{pattern} was measured across hosts alone and is not predicted for {ranks} ranks, which fit on "
            "one host of {ranks_per_node}; measure it within a host, too, and give both runs."
        ),
    }
)
#: Parameters of one prediction: reasons that differ in these alone are alike.
_OF_ONE_PREDICTION = frozenset(
    {"algorithms", "factor", "measured_ranks_per_node", "prediction", "ranks", "ranks_per_node", "size"}
)


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why something is not predicted."""

    code: Code
    subject: str = ""
    """An operation of a backend (``gloo all_reduce``), a hook or a workload."""
    parameters: Mapping[str, str | int] = field(default_factory=dict)
    """The other fields of the sentence."""

    @classmethod
    def of(cls, error: InputError) -> Reason:
        """Return the reason of an error; code ``invalid`` if it carries none."""
        if isinstance(error, UnpredictedError):
            return error.reason
        return cls(code="invalid", parameters={"sentence": str(error)})

    def __str__(self) -> str:
        return SENTENCES[self.code].format(subject=self.subject, **self.parameters)

    def key(self, subject: str) -> tuple[object, ...]:
        """Return what alike reasons have in common, for a prediction of ``subject``.

        Reasons are alike if they differ only in the subject of the prediction, in ranks, sizes or algorithms.
        """
        shared = {name: value for name, value in self.parameters.items() if name not in _OF_ONE_PREDICTION}
        return self.code, "" if self.subject == subject else self.subject, tuple(sorted(shared.items()))


class UnpredictedError(InputError):
    """Something cannot be predicted from what was measured."""

    def __init__(self, code: Code, subject: str = "", **parameters: str | int) -> None:
        self.reason = Reason(code=code, subject=subject, parameters=parameters)
        super().__init__(str(self.reason))
