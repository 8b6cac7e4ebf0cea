"""Tests of the table of hooks, which is read without torch."""

import sys

from launching import succeeded


def test_the_table_needs_no_torch():
    """Read the messages of hooks without torch, and name what a hook's class needs."""
    program = """if True:
        import sys
        sys.modules["torch"] = None
        from commbench.errors import InputError
        from commbench.hooks import HOOKS
        from commbench.hooks.message import BucketShape
        sent = HOOKS["topk"]().messages(BucketShape(shapes=[(1000,)], world_size=2))
        print(int(sent[0].message_bytes))
        try:
            from commbench.hooks import TopK
        except InputError as error:
            print(error)
    """
    assert succeeded(sys.executable, "-c", program).splitlines() == [
        "160",
        "Communication hooks need PyTorch, which is not installed: pip install torch.",
    ]
