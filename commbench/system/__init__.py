"""The machine: host, topology, GPUs, clock, installed software, environment variables, and this
process.

May import stats, schema, units and errors; must not import anything else of commbench. A fact that
cannot be read is
None or empty, never an error: a measurement must not fail because a file under /sys is missing.
"""
