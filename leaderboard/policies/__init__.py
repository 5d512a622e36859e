"""Policies as entries: tables and networks as data, rules by name; read, checked and played."""
