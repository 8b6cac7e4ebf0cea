"""An emulated cluster on one Linux machine: hosts are network namespaces whose links have a shaped
rate.

May import launch.launchers for the names of variables; must not import the conductor or ranks.
``agent`` runs as a script without site packages, so it imports the standard library only.
"""
