"""Starts ranks, supervises them and keeps the ledger of a run: launchers, conductor, rank,
watchdog, diagnosis, lab.

May import analysis, tuner (for tables), results and everything below; never report, interop or cli.
Heavy libraries (torch, mpi4py) are loaded by ranks alone, inside functions.
"""
