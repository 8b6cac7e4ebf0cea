"""Torch's own tests of distributed training over Gloo, each on two spawned ranks.

``python torch_suite.py TorchSuite.test_NAME...``
"""

import os
import tempfile

os.environ["BACKEND"] = "gloo"
os.environ["WORLD_SIZE"] = "2"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())  # spawned ranks inherit it

from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed.distributed_test import (
    DistributedTest,
    TestDistBackend,
)


class TorchSuite(TestDistBackend, DistributedTest._DistTestBase):
    """The tests, with a process for each rank."""

    def setUp(self) -> None:
        """Spawn the ranks."""
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    run_tests()
