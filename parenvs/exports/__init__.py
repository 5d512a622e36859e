"""Plans in the words of the frameworks that run them: JAX, PyTorch, and launchers."""
