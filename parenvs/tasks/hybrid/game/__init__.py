"""``HybridPlan-v0``: plans of all axes together, for one agent, single and in batches."""
