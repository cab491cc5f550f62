"""Markdown tables of the documents, written from results files."""
