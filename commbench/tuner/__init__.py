"""The decision: which settings to measure, in which order, which one to recommend and how sure that is."""
