"""Tests of the losses of a tuned training."""

import pytest

from commbench.errors import InputError
from commbench.results.files import LOSSES
from commbench.results.losses import Loss, append_losses, read_losses

FIRST = [Loss(launch=0, step=5, loss=2.25), Loss(launch=0, step=6, loss=2.0)]


def test_losses_are_appended_and_read_back(tmp_path):
    """Write one header for several calls; read nothing without a file."""
    assert [] == read_losses(tmp_path)
    append_losses(tmp_path, FIRST)
    later = [Loss(launch=1, step=5, loss=float("inf"))]
    append_losses(tmp_path, later)
    with (tmp_path / LOSSES).open("a") as stream:
        stream.write("0,7,1.")  # cut by a crash
    assert FIRST + later == read_losses(tmp_path)
    assert "launch,step,loss\n0,5,2.25\n" == (tmp_path / LOSSES).read_text()[:26]


def test_losses_that_a_spreadsheet_saved_are_read(tmp_path):
    """Read a byte order mark and the line ends of Windows."""
    (tmp_path / LOSSES).write_bytes(b"\xef\xbb\xbflaunch,step,loss\r\n0,5,2.25\r\n")
    assert FIRST[:1] == read_losses(tmp_path)


@pytest.mark.parametrize("data", [b"a,b\n1,2\n", b"launch,step,loss\n0,5,2\xff\n"])
def test_another_file_is_refused(tmp_path, data):
    """Refuse a foreign file of that name, with the reason."""
    (tmp_path / LOSSES).write_bytes(data)
    with pytest.raises(InputError, match="is not a table of losses"):
        read_losses(tmp_path)
