"""XLA's partitioner, Shardy, as referee; needs the extra ``jax``."""

from parenvs.shardy.verify import verify_plan

__all__ = ["verify_plan"]
