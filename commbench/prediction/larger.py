"""The measured network at other numbers of ranks and other rates of the links, where its algorithm is known."""
