"""Tests of the table of hooks, which is read without torch."""

import subprocess
import sys


def test_the_table_needs_no_torch() -> None:
    """Read the messages of hooks without torch, and name what a hook's class needs."""
    program = """if True:
        import sys
        sys.modules["torch"] = None
        from commbench.errors import InputError
        from commbench.hooks import HOOKS
        from commbench.hooks.message import BucketShape
        sent = HOOKS["topk"]().messages(BucketShape(elements=1000, world_size=2))
        print(int(sent[0].message_bytes))
        try:
            from commbench.hooks import TopK
        except InputError as error:
            print(error)
    """
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.splitlines() == [
        "160",
        "Communication hooks need PyTorch, which is not installed: pip install torch.",
    ]
