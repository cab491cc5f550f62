.PHONY: format lint type test torture

MINUTES ?= 20

format:
	ruff format .
	ruff check --fix .

lint:
	ruff format --check .
	ruff check .
	lint-imports --no-cache --no-logo

type:
	mypy

test:
	python -m pytest -n 2

torture:
	TORTURE_MINUTES=$(MINUTES) TORTURE_RESULTS=experiments/results/torture/torture.json python -m pytest -m torture $(wildcard tests/torture/kills_*.py tests/torture/fuzz_*.py)
