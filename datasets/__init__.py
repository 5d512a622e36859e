"""Shipped graphs, the models that they come from and the script that builds them."""
