"""How good predictions were: every one beside its later measurement, as ``predictions.csv`` and in a few numbers."""
