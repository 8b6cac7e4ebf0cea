"""The launchers that start ranks for the conductor, one module each behind one interface, and the
choice among them.

May import launch.identity and the packages below launch; must not import the conductor, ranks or
the lab.
"""
