"""One HTML page about training runs, and the tables, charts and papers' rows that it shows."""
