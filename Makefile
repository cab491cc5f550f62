.PHONY: format lint type test

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
	python -m pytest
