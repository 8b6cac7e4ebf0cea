"""Other tools: imports of their output as runs, exports of runs to their formats.

Nothing below this package knows the format of another tool.
"""
