"""One expression in ``jax.numpy`` for each ATen operation, by kind; ``table`` holds them all."""
