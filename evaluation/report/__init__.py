"""Write one HTML page about training runs, with tables, charts and the papers' rows."""
