# make demo   set up and run a small study with and without rotation, about four minutes on two cores
# make test   set up and run the tests
# make lint   style, types, and imports along the layers
# make docs   the documentation site, in site/
# make chaos  kill, corrupt and starve runs and studies on purpose; they must come back to the bit
# make bench  speed, as ratios in one run; wants an otherwise idle machine

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
PAIR := $(shell sed -nE 's/^(torch|torchvision)==([0-9.]+)$$/\1==\2+cpu/p' constraints.txt)

.PHONY: demo test lint docs chaos bench clean
.DEFAULT_GOAL := test

# What a user needs. Without a GPU the CPU build of PyTorch is tried first, where pip's index has one: it is a fraction
# of the size. pip shows its progress.
.venv/.user: pyproject.toml constraints.txt
	@echo "set-up 1/3: a virtual environment in .venv"
	test -d .venv || $(PYTHON) -m venv .venv
	@echo "set-up 2/3: PyTorch, which takes most of the time and the disk"
	@command -v nvidia-smi >/dev/null || $(PIP) $(PAIR) 2>/dev/null || echo "no CPU build of $(PAIR) here: the usual one works, too"
	@echo "set-up 3/3: effssl and what it needs"
	$(PIP) -e .
	touch .venv/.user

# What its developers need beside that.
.venv/.ready: .venv/.user
	$(PIP) --quiet -e ".[dev]"
	touch .venv/.ready

demo: .venv/.user
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
	$(PIP) --quiet -e ".[dev,bench]"
	touch .venv/.peers

bench: .venv/.peers
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build dist site *.egg-info
