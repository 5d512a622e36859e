"""The state of a PyTorch module on disk: written under one plan, read under another."""
