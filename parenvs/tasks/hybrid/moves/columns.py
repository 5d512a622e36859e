"""Where the whole numbers of a plan and of its stages stand."""

MAX_STAGES = 64
"""Most stages of a plan."""
COUNT, SAMPLES, CHUNKS, SHARED, CONTEXT, EXPERT, SHARD = range(7)
"""Of a plan: stages, samples of a micro-batch over all replicas, chunks, 1 with sequence
parallelism, ranks that share the tokens of a sample, replicas among which experts are dealt out,
and those among which ZeRO shares states; 0: all."""
WHOLE = 7
DEVICES, TP, ZERO, FULL, SELECTIVE = range(5)
"""Of a stage: the first of its layers are recomputed in full, those behind them selectively."""
OF_STAGE = 5
