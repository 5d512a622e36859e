"""Reports as text and as pictures."""
