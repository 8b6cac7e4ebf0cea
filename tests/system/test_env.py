"""Tests of environment variables as an axis: how --env is read."""

import pytest

from commbench.errors import InputError
from commbench.system.env import is_control, parse_env, variables_of


def test_the_first_value_stands_twice():
    """Return each value in the given order, with the control behind the first."""
    assert ("A=x", "A=x (again)", "A=y", "A=default") == parse_env(["A=x,y,default"])
    assert () == parse_env([])


def test_several_variables_are_combined():
    """Return the product of all variables with one control."""
    envs = parse_env(["A=1,2", "B=x,default"])
    assert ("A=1;B=x", "A=1;B=x (again)", "A=1;B=default", "A=2;B=x", "A=2;B=default") == envs
    assert [False, True, False, False, False] == list(map(is_control, envs))


def test_a_value_may_hold_a_comma_and_an_equals_sign():
    """Read an escaped comma as a part of its value."""
    first, _, second = parse_env([r"OMPI_MCA_btl=tcp\,self,a=b"])
    assert [{"OMPI_MCA_btl": "tcp,self"}, {"OMPI_MCA_btl": "a=b"}] == [
        variables_of(first),
        variables_of(second),
    ]


def test_a_control_has_the_variables_of_the_first():
    """Ignore the ending of the control; leave a default out; return nothing for no environment."""
    assert {"A": "1", "B": None} == variables_of("A=1;B=default (again)")
    assert {} == variables_of("")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["A="], "has no values"),
        (["A"], "has no values"),
        (["A=1,,2"], "has an empty value"),
        (["A=1,1"], "has the value 1 twice"),
        (["A=1", "A=2"], "A was given twice"),
        (["=1"], "does not begin with the name of a variable"),
        (["1A=1"], "does not begin with the name of a variable"),
        (["A B=1"], "does not begin with the name of a variable"),
        (["A=1;B=2"], "cannot hold a semicolon"),
        (["A=x (again)"], "cannot hold a semicolon"),
        (["API_TOKEN=1"], "may be a secret"),
        (["MY_PASSWORD=1"], "may be a secret"),
        (["NCCL_KEY=1"], "may be a secret"),
        (["A=https://me:word@host"], "may be a secret"),
        (["RANK=1"], "the launcher sets it for each rank"),
        (["OMPI_COMM_WORLD_RANK=1"], "the launcher sets it for each rank"),
    ],
)
def test_what_cannot_be_used_is_refused(options, words):
    """Raise one sentence for a name or a value that cannot be used."""
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        parse_env(options)
