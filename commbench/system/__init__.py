"""The machine: host, topology, GPUs, and this process.

Imports nothing of commbench but `errors`, `units` and `schema`.
"""
