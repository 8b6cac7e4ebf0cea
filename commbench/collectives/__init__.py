"""Measurable cases: operations, patterns, element types, cases and suites.

Plain data, and calls on the primitives that a backend offers; imports no backend and nothing above it.
"""
