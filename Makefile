# make demo   plan T5-3B on four servers with PPO, beside even cut, PipeDream and the optimum
# make test   the tests
# Both set up .venv first; PYTHON chooses the interpreter.
# make lowest the tests with the lowest versions that setup.cfg allows, in .venv-lowest
PYTHON ?= python3
LOWEST_PYTHON ?= python3.10
LOWEST := .venv-lowest
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lowest lint check bench clean

$(STAMP): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[agents,jax,envs,dev]'
	touch $@

# The demo needs neither JAX nor the development tools.
$(VENV)/.demo:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[agents]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/parenvs compare t5-3b --cluster C --stages 4 --out demo/plan.json --plot demo/gantt.png
	$(BIN)/parenvs judge demo/plan.json

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

$(LOWEST)/.installed: setup.cfg pyproject.toml constraints-lowest.txt
	$(LOWEST_PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet -c constraints-lowest.txt -e '.[agents,jax,envs,dev]'
	touch $@

lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

bench: $(STAMP)
	$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) $(LOWEST) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
