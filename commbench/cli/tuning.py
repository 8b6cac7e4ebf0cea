"""The command that finds the best settings without measuring them all: tune."""
