"""``OperatorPartition-v0`` and ``DataParallel-v0``, single and in batches."""
