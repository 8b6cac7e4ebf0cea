"""Other tools: their output as runs (`imports`), runs in their formats (`exports`).

Nothing below this package knows the format of another tool.
"""
