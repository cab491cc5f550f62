"""This repository's own measurements: plans, runs, records, tables and pictures. Not in the installed package."""
