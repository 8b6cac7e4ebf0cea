"""The buckets that a DDP model uses, as DDP logs them, in the order of sending."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.models import parameter_facts
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.layout import caps_bytes, first_layout


def bucket_bytes(ddp_model: DistributedDataParallel) -> list[int]:
    """Return the bytes of each bucket: of the rebuilt ones, else of those of DDP's construction."""
    return _integers(
        _logged(ddp_model, "rebuilt_bucket_sizes") or _logged(ddp_model, "bucket_sizes")
    )


def bucket_parameters(ddp_model: DistributedDataParallel, case: TrainingCase) -> list[list[int]]:
    """Return the indices of each bucket's parameters among the trainable ones.

    Empty until DDP has rebuilt its buckets.

    DDP logs the indices of rebuilt buckets only. Buckets that it does not rebuild follow from the
    bucket size.
    """
    if case.keeps_first_buckets:
        parameters = parameter_facts(ddp_model.module)
        return list(map(list, first_layout(parameters, caps_bytes(case.bucket_cap_mb))))
    logged = _logged(ddp_model, "rebuilt_per_bucket_param_indices")
    return [_integers(bucket.replace(" ", ",")) for bucket in logged.split(", ")] if logged else []


def _logged(ddp_model: DistributedDataParallel, name: str) -> str:
    return str(ddp_model._get_ddp_logging_data().get(name, ""))  # noqa: SLF001 - the only way


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]
