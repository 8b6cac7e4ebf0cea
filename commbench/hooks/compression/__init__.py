"""Gradient compression on host and GPU: choosing what to send, and keeping what was not sent for the next step."""
