"""commbench: times collectives and training steps on many ranks, says how sure it is, and recommends settings."""

__version__ = "0.1.0"
