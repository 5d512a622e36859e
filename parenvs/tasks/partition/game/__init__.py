"""``OperatorPartition-v0``, ``DataParallel-v0``, ``PartitionPlan-v0``, single and in batches."""
