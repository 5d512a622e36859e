"""``PipelineCut-v0`` and ``PipelinePlan-v1``, single and in batches."""
