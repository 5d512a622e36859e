"""What JAX takes on this machine: calibrations, and layers by named scope (extra ``jax``)."""
