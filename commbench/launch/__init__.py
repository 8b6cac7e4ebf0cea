"""Starting ranks: who am I, which launcher, the conductor, its ranks and the watchdog between them."""
