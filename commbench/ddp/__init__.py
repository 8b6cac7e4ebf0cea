"""Training under DDP: workloads, traces of real models, and the timed blocks of a launch.

`plan`, `traces` and `inspect` need no torch. May import hooks, backends, engine and the packages
below them; nothing of results or above.
"""
