"""What this machine takes: kernels, collectives, layers and steps, by the clock."""
