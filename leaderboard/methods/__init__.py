"""Methods as entries: scripts that run in the sandbox on problems that the checker draws."""
