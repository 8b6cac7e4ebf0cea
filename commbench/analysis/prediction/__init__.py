"""Predictions from measured curves: collectives at other sizes, training steps at other settings,
larger clusters.
"""
