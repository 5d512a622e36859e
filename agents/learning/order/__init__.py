"""A policy for ``MicroBatchOrder-v0``, its training on the generator, and plans sampled from it."""
