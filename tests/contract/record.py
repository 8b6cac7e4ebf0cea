"""Record what commbench does, after a deliberate change: ``python tests/contract/record.py``.

``git diff tests/contract`` then shows what changed. The command lines of ``refusals.json`` are
written by hand; the others stand in ``test_contract.py``.
"""

import os
import sys
from pathlib import Path

import pytest

os.environ["COMMBENCH_RECORDS"] = "1"
sys.exit(pytest.main([str(Path(__file__).parent), "-k", "not refused"]))
