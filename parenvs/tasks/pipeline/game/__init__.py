"""``PipelineCut-v0`` and ``PipelinePlan-v0``, single and in batches."""
