"""Textbook times of collectives over p ranks, from latency, bandwidth and reduction cost of a hop."""
