"""The environments; ``import parenvs`` registers them with Gymnasium."""
