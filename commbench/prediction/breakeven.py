"""Where compression pays: the density below which top-k beats sending gradients whole, over ranks and bandwidth."""
