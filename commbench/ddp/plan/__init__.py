"""The plan of a training run, without torch: cases, records, bucket layouts and the workload's
interface.

May import hooks.registry, engine.records and the packages below them, but not the rest of ddp.
"""
