"""What this machine is: host, topology, GPUs, process. Imports nothing of commbench but `errors` and `units`."""
