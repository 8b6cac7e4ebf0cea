"""Imports of other tools' output as runs of commbench."""
