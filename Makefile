# Few targets, for people and CI alike. A fresh machine needs Python 3.11 or newer (with venv), make, and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed.stamp
WHEEL := build/wheel
# The tests run on the wheel as a user gets it: it is unpacked here and stands before the checkout.
SITE := build/site

.PHONY: run test test-gpu lint docs bench wheel

# Set up and run the bundled demo model: text streams, then the cache report.
run: $(STAMP)
	$(BIN)/hotset run demo -p "The Debian installer is" -n 64 --temp 0

# All that CI checks. Most tests keep one core busy; those of the server and the page as a whole want the machine for themselves.
test: lint wheel
	$(BIN)/python docs/make_cli.py --check
	$(BIN)/python docs/make_table.py --check
	PYTHONPATH=$(SITE) $(BIN)/python -m pytest tests/cpu --numprocesses auto --maxprocesses 4 --dist worksteal
	PYTHONPATH=$(SITE) $(BIN)/python -m pytest tests/e2e

# On a machine with an NVIDIA GPU.
test-gpu: $(STAMP)
	$(BIN)/python -m pytest tests/gpu

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The reference of the command line, from its own help, and the table of architectures.
docs: $(STAMP)
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_table.py

bench: $(STAMP)
	$(BIN)/hotset bench demo
	$(BIN)/python benchmarks/host_expert.py

wheel: $(STAMP)
	rm -rf build/lib $(WHEEL) $(SITE)
	$(BIN)/python -m build --wheel --outdir $(WHEEL) .
	$(BIN)/python -m pip install --quiet --no-deps --target $(SITE) $(WHEEL)/*.whl
	cd build && PYTHONPATH=$(abspath $(SITE)) $(abspath $(BIN))/python -c "import hotset; assert hotset.__file__.startswith('$(abspath $(SITE))'), hotset.__file__"

# Runs again when the requirements change. pip has known dependency groups since 25.1.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $(STAMP)
