"""Starts ranks of a script as torchrun does, but at once: ``ranks.py RANKS PORT SCRIPT WORDS``.

Ends as the first rank that fails.
"""

import os
import subprocess
import sys

if __name__ == "__main__":
    ranks, port, *command = sys.argv[1:]
    os.environ |= {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = []
    for rank in range(int(ranks)):
        environment = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        processes.append(subprocess.Popen([sys.executable, *command], env=environment))
    codes = [process.wait() for process in processes]
    sys.exit(next((code for code in codes if code), 0))
