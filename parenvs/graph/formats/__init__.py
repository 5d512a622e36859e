"""Forms that modules come in besides the HLO of a front end: dumps of XLA's, and StableHLO."""
