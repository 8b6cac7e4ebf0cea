"""Measurable cases: operations, patterns, element types, cases and suites.

Plain data, and calls of a backend's primitives. Imports no backend and nothing above it.
"""
