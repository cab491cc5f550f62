"""Batches: collation, masked and edited copies, packed blocks."""
