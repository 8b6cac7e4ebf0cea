"""Compiled compression with error feedback: top-k selection on host and GPU arrays, quantisation on
host arrays.

May import errors and `commbench.hooks.message`, but not torch.
"""
