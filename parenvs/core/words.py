"""Names that options take, of things whose modules take their time to import.

Shells complete them. ``tests/cli/test_words.py`` holds them to what those modules have.
"""

PRESETS = ("A", "B", "C", "a100-2", "a100-4", "h100-2", "h100-4")
"""Clusters, of ``parenvs.cluster``."""
PRECISIONS = (
    "fp32", "tf32", "fp16", "bf16", "fp8", "fp8-row", "fp8-block", "mxfp8", "nvfp4",
)  # fmt: skip
"""Number formats of matrix products, of ``parenvs.cluster``."""
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "torch", "jax")
"""Frameworks that plans are made for, of ``parenvs.exports``."""
ENGINES = ("local", "ray")
"""Where independent runs are performed, of ``parenvs.agents.learning.distributed``."""
