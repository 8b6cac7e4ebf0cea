"""Tunes or watches a person's own training while it goes on, without a change to its script.

It may import everything below ``interop``, torch included. Its modules `options` and `command` load
no torch.
"""
