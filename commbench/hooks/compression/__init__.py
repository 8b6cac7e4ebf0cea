"""Compiled top-k selection with error feedback, on host and GPU arrays.

May import errors and `commbench.hooks.message`, but not torch.
"""
