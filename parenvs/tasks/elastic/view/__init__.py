"""Jobs on nodes that come and go, as text and as pictures."""
