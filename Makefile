# make demo   set up and run a small study with and without rotation, about four minutes on two cores
# make test   set up and run the tests
# make lint   style, types, and imports along the layers
# make docs   the documentation site, in site/
# make chaos  kill, corrupt and starve runs and studies on purpose; they must come back to the bit
# make bench  speed, as ratios in one run; wants an otherwise idle machine

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint docs chaos bench clean
.DEFAULT_GOAL := test

.venv/.ready: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch .venv/.ready

demo: .venv/.ready
	$(BIN)/python -m effssl.studies.demo

test: .venv/.ready
	$(BIN)/python -m pytest -q -n 2 -rs

lint: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# mkdocs 2, which material warns of at every start, is not the one that constraints.txt names.
# No --quiet: it hides warnings from --strict.
docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

chaos: .venv/.ready
	$(BIN)/python -m tests.chaos

.venv/.peers: .venv/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,bench]"
	touch .venv/.peers

bench: .venv/.peers
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build dist site *.egg-info
