"""Shipped graphs and the models they come from; generated pipeline problems and stored sets."""
