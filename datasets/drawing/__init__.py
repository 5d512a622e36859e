"""Problems drawn by number: orders of micro-batches, IOPDDL problems."""
