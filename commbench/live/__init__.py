"""Live tuning: finds the best DDP setting inside a person's own training, without a change to its script.

It may import everything below ``interop``, torch included. Its modules `options` and `command` load no torch.
"""
