"""What parenvs bench measures: agents on problems, and speed."""
