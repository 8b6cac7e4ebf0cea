"""Tests of commbench.system.variables: the allow-list, and protection of secrets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.system import variables
from commbench.system.variables import REDACTED, relevant_variables

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


def test_relevant_variables_are_settings_of_timing():
    """Keep variables that affect timing, and drop the rest."""
    environ = dict.fromkeys(f"{KEPT} {DROPPED}".split(), "1")
    assert sorted(KEPT.split()) == list(relevant_variables(environ))


SECRETS = "secret token password passwd credential private auth session _key cookie"


def test_relevant_variables_never_pass_a_secret_name():
    """Drop every secret-looking name, whatever allowed prefix it has, in any case."""
    for allowed in (*variables._ALLOWED_PREFIXES, *variables._ALLOWED_NAMES):
        for secret in SECRETS.split():
            names = [f"{allowed}A_{word}9" for word in (secret, secret.upper(), secret.title())]
            assert {} == relevant_variables(dict.fromkeys(names, "1"))


@given(
    st.text("abc/:.,", max_size=10),
    st.sampled_from(["http", "https", "tcp", "socks5h"]),
    st.text("abc.%-_1", min_size=1, max_size=8),
    st.text("abc/@:%?#!1", min_size=1, max_size=8),
    st.text("abc/:.1", max_size=10),
)
def test_relevant_variables_redact_passwords_in_urls(before, scheme, user, password, after):
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
def test_relevant_variables_values(value, expected):
    """Keep ordinary values and hide those that contain a secret."""
    assert {"NCCL_X": expected} == relevant_variables({"NCCL_X": value})
