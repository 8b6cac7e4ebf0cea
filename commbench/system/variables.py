"""The environment variables that affect timing, by allow-list, without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PREFIXES = """
    NCCL_ OMPI_ PRTE_MCA_ MPICH_ MPIR_CVAR_ I_MPI_ MPI4PY_ UCX_ FI_ PSM2_ PSM3_
    GLOO_ TORCH_NCCL_ TORCH_GLOO_ TORCH_DISTRIBUTED_ TORCH_SYMM_MEM_ TORCH_FR_ CUDA_MPS_
    OMP_ GOMP_ KMP_ NUMBA_ COMMBENCH_ SLURM_NTASKS
"""
_NAMES = """
    MKL_NUM_THREADS OPENBLAS_NUM_THREADS CUDA_VISIBLE_DEVICES CUDA_DEVICE_MAX_CONNECTIONS
    SLURM_JOB_ID SLURM_NNODES SLURM_CPUS_PER_TASK SLURM_JOB_PARTITION SLURM_MPI_TYPE PBS_JOBID
"""
_ALLOWED_PREFIXES = tuple(_PREFIXES.split())
_ALLOWED_NAMES = frozenset(_NAMES.split())
# Open MPI's own facts about each rank: no settings, different on every rank; some hold the command
# line.
_RANK_BOOKKEEPING = re.compile(
    r"OMPI_(COMM_WORLD|WORLD|UNIVERSE|APP_CTX|FIRST|NUM_APP|COMMAND|ARGV).*"
    r"|OMPI_(FILE_LOCATION|TOOL|MCA_PREFIXES|VERSION).*"
    r"|OMPI_LIBDIR_LOC"
    r"|(OMPI|PRTE)_MCA_(num_procs|initial_wdir|cpu_type|ess(_\w+)?)"
    r"|(OMPI|PRTE)_MCA_(orte_ess_\w+|orte_app_num|\w+_uri)",
)
# 'precondition': Open MPI 4 passes a shared key to its ranks as ..._precondition_transports.
_SECRET = re.compile(
    r"secret|token|passw|passphrase|(?<![a-z])pass(?![a-z])|pwd|cred|private|auth|session"
    r"|key|cookie|precondition",
    re.IGNORECASE,
)
#: Variables by which a launcher tells each rank its place.
_PLACE = re.compile(
    r"(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|GROUP_RANK|MASTER_(ADDR|PORT)"
    r"|(PMIX|PMI|SLURM|PBS|TORCHELASTIC|COMMBENCH)_.*"
)
_SECRET_VALUE = re.compile(rf":\S*@|({_SECRET.pattern})[\w.-]*[=:]", re.IGNORECASE)
REDACTED = "<redacted>"


def relevant_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that affect timing, by allow-list and sorted by name.

    A name that looks like a secret is left out even with an allowed prefix. All of PMIX_* is left
    out, as it holds credentials. A value that contains ``user:password@`` or ``token=...`` is
    replaced by '<redacted>'. Both rules hide too much rather than too little.
    """
    relevant = {}
    for name in sorted(environ):
        is_allowed = name in _ALLOWED_NAMES or name.startswith(_ALLOWED_PREFIXES)
        if is_allowed and not looks_secret(name) and not _RANK_BOOKKEEPING.fullmatch(name):
            relevant[name] = environ[name]
            if looks_secret(environ[name], is_value=True):
                relevant[name] = REDACTED
    return relevant


def looks_secret(text: str, *, is_value: bool = False) -> bool:
    """Return whether the name, or ``is_value`` the value, of a variable looks like a secret."""
    return bool((_SECRET_VALUE if is_value else _SECRET).search(text))


def is_of_one_rank(name: str) -> bool:
    """Return whether the launcher sets a variable of this name for each rank."""
    return bool(_RANK_BOOKKEEPING.fullmatch(name) or _PLACE.fullmatch(name))
