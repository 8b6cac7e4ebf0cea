"""Tests of the sentences about errors of a user's own file."""

import sys

import pytest

from commbench.system.user_files import failure, load_callable

#: As torch raises an error of a worker of a DataLoader again, in the process that trains.
OF_WORKER = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/me/data.py", line 7, in __getitem__
    raise ValueError("corrupt sample")
ValueError: corrupt sample
"""


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("raise KeyError('label')", "KeyError: 'label', own.py line 2"),
        ("__import__('json').loads('')", "JSONDecodeError: Expecting value: line 1 column 1"),
        ("raise ValueError(text)", "ValueError: corrupt sample, data.py line 7"),
        ("raise ValueError(text + 'in a')", "ValueError: corrupt sample in a, data.py line 7"),
        ("raise ValueError", "ValueError, own.py line 2"),
    ],
)
def test_an_error_names_the_line_of_the_user_s_file(statement, expected):
    """Name the innermost line that is neither of a library nor of Python, also of a worker."""
    code = compile(f"\n{statement}", "/home/me/own.py", "exec")
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of several types
        exec(code, {"text": OF_WORKER})  # noqa: S102 - a test's own
    said = failure(raised.value)
    assert said.startswith(expected)
    assert said.endswith((", own.py line 2", ", data.py line 7"))


def test_a_file_imports_from_its_directory_and_the_working_directory(tmp_path, monkeypatch):
    """Import what lies beside the file first, and what lies in the working directory last."""
    here, there = tmp_path / "here", tmp_path / "there"
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for folder in (here, there):
        folder.mkdir()
    (here / "token.py").write_text("raise RuntimeError('shadows the library')")
    (here / "helper_of_own.py").write_text("def make(): ...")
    (there / "own.py").write_text("import token\nfrom helper_of_own import make")
    monkeypatch.chdir(here)
    monkeypatch.delitem(sys.modules, "token", raising=False)
    assert "make" == load_callable(f"{there / 'own.py'}:make", "workload").__name__
