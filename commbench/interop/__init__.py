"""Other tools: their output as runs (`imports`), runs in their formats (`exports`)."""
