"""``MicroBatchOrder-v0``: the order of micro-batches that differ, single and native batch."""
