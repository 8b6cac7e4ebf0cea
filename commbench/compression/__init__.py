"""Gradient compression on the host and on a GPU: choosing what to send, and keeping what was not sent for the next step."""
