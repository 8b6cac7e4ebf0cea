"""The decision: which settings to measure, in which order, which one to recommend, and how sure
that is.

It reads results and predictions, and starts no ranks: `launch` runs the stages that it plans.
"""
