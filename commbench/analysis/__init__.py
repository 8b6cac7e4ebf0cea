"""What runs say beyond their rows: comparison, stragglers, scaling, prediction. Reads results; measures nothing."""
