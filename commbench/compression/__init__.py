"""Gradient compression on the host: choosing what to send, and keeping what was not sent for the next step."""
