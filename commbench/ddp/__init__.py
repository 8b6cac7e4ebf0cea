"""Training under DDP: workloads, traces of real models, and the timed blocks of a launch.

`plan`, `traces` and `inspect` need no torch. May import hooks, backends, engine and what lies below these; nothing of
results or above.
"""
