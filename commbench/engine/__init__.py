"""Measures one case on one backend: buffers, timed loops, stopping rule, verification.

It knows a backend by the interface in `communicator` only.
"""
