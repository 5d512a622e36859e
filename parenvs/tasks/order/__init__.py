"""The order of micro-batches that differ: problem, formulas of 1F1B, packing, files, report."""
