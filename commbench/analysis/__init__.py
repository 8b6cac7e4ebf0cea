"""What runs show beyond their rows: comparison, stragglers, scaling, prediction.

Reads results; measures nothing, writes nothing, and needs neither MPI nor torch.
"""
