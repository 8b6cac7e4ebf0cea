"""Training under DDP: workloads, traces of real models, and what one step of a model costs on its own."""
