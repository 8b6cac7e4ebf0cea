"""Tests of commbench.system.variables: the allow-list, and protection of secrets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.system import variables
from commbench.system.variables import REDACTED, relevant_variables


@st.composite
def _secret_names(draw: st.DrawFn) -> str:
    """Draw an allowed name with a secret-looking part, in any case."""
    allowed = draw(st.sampled_from([*variables._ALLOWED_PREFIXES, *variables._ALLOWED_NAMES]))
    secrets = [
        "secret",
        "token",
        "password",
        "passwd",
        "credential",
        "private",
        "auth",
        "session",
        "_key",
        "cookie",
    ]
    secret = draw(st.sampled_from(secrets))
    cases = draw(st.lists(st.booleans(), min_size=len(secret), max_size=len(secret)))
    mixed = "".join(
        letter.upper() if upper else letter for letter, upper in zip(secret, cases, strict=True)
    )
    filler = st.text("ABCxyz_09", max_size=8)
    return allowed + draw(filler) + mixed + draw(filler)


KEPT = """
    NCCL_ALGO OMPI_MCA_btl PRTE_MCA_rmaps_default_mapping_policy MPIR_CVAR_CH4_NUM_VCIS
    I_MPI_FABRICS UCX_TLS FI_PROVIDER GLOO_SOCKET_IFNAME OMP_NUM_THREADS MKL_NUM_THREADS
    TORCH_NCCL_BLOCKING_WAIT CUDA_VISIBLE_DEVICES SLURM_JOB_ID SLURM_NTASKS_PER_NODE PBS_JOBID
    NUMBA_NUM_THREADS COMMBENCH_ANY OMPI_MCA_mpi_yield_when_idle OMPI_ALLOW_RUN_AS_ROOT NCCL_BYPASS
"""
#: Unlisted variables, a rank's own identity, and secrets.
DROPPED = """
    PMIX_SERVER_URI4 PMIX_RANK HOME AWS_SECRET_ACCESS_KEY SLURM_JOB_USER TORCH_HOME nccl_algo
    OMPI_COMMAND OMPI_ARGV OMPI_COMM_WORLD_RANK OMPI_MCA_orte_hnp_uri OMPI_MCA_ess_base_vpid
    OMPI_MCA_orte_precondition_transports COMMBENCH_API_KEY NCCL_APIKEY I_MPI_DB_PASS FI_OPX_auth
"""


def test_relevant_variables_are_settings_of_timing() -> None:
    """Keep variables that affect timing, and drop the rest."""
    environ = dict.fromkeys(f"{KEPT} {DROPPED}".split(), "1")
    assert sorted(KEPT.split()) == list(relevant_variables(environ))


@given(_secret_names(), st.text(max_size=20))
def test_relevant_variables_never_pass_a_secret_name(name: str, value: str) -> None:
    """Drop every secret-looking name, whatever allowed prefix it has."""
    assert relevant_variables({name: value}) == {}


@given(
    st.text("abc/:.,", max_size=10),
    st.sampled_from(["http", "https", "tcp", "socks5h"]),
    st.text("abc.%-_1", min_size=1, max_size=8),
    st.text("abc/@:%?#!1", min_size=1, max_size=8),
    st.text("abc/:.1", max_size=10),
)
def test_relevant_variables_redact_passwords_in_urls(
    before: str, scheme: str, user: str, password: str, after: str
) -> None:
    """Replace the whole value wherever a URL in it carries a password."""
    value = f"{before}{scheme}://{user}:{password}@{after}"
    assert relevant_variables({"UCX_TLS": value}) == {"UCX_TLS": REDACTED}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("tcp://10.0.0.1:4000", "tcp://10.0.0.1:4000"),
        ("self,sm", "self,sm"),
        ("ppr:2:node", "ppr:2:node"),
        ("allreduce:tree;broadcast:ring", "allreduce:tree;broadcast:ring"),
        ("https://tok@host", REDACTED),
        ("--api-token=abc", REDACTED),
        ("url?access_key_id=abc", REDACTED),
    ],
)
def test_relevant_variables_values(value: str, expected: str) -> None:
    """Keep ordinary values and hide those that contain a secret."""
    assert {"NCCL_X": expected} == relevant_variables({"NCCL_X": value})
