"""Measures one case on one backend: buffers, timed loops, visits, verification.

It knows a backend by the interface in `communicator` only.
"""
