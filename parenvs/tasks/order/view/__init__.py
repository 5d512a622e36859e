"""Orders of micro-batches as text and as pictures: who waits for whom, and when."""
