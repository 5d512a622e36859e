"""Forms that modules come in, and the functions that make a graph of each."""
