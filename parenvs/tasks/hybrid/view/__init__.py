"""Hybrid plans as text and as pictures: devices, memory, seconds by part, schedule, all plans."""
