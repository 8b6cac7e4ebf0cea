"""The timed loops: clocks, making ranks start together, native and Python loops."""
