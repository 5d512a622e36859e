"""Plans of strategies (IOPDDL) as text and as pictures."""
