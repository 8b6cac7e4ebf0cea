"""The plan of a training run, without torch: cases, records, bucket layouts and the workload's interface.

May import hooks.registry, engine.records and what lies below these, but not the rest of ddp.
"""
