"""Policies for ``HybridPlan-v0``."""
