"""Predictions for people: what a larger cluster or another setting would do, each labelled as predicted."""
