"""PyTorch modules as JAX functions: exported operations, their expressions, the training step."""
