"""Shardy, XLA's own partitioner, as a referee of partition plans; needs the extra ``jax``."""

from parenvs.shardy.verify import verify_plan

__all__ = ["verify_plan"]
