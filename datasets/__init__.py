"""Shipped graphs and the models they come from; generated problems and stored sets."""
