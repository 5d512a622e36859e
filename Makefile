# make demo   plan T5-3B on four servers with PPO, beside even cut, PipeDream and the optimum
# make fast   what an edit needs: all tests that take no time, in less than a minute
# make test   those, and the ones marked thorough
# All set up .venv first; PYTHON chooses the interpreter.
# make slow   the second job: tests marked slow, which take seconds and have cheaper ones of a kind
# make docs   the site, in build/docs: warnings are errors, links inside and the spelling of what
#             is shown are checked, no network
# make release  sdist and wheel in dist, checked, and installed with every Python that is there
# Other Pythons and the lowest versions are noxfile.py's: nox -l
# make fuzz   mutated files for every reader, for SECONDS, with SEED; make audit and make sbom tell
#             of known vulnerabilities and list what is depended on
# make renew-hybrid  sets, references and tasks of hybrid plans, after what they cost has changed; it
#             goes on where it was stopped
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The processes that tests start would else compile the package anew, each for itself.
unexport PYTHONDONTWRITEBYTECODE

# Seconds and seed of make fuzz.
SECONDS ?= 600
SEED ?= 0

.PHONY: demo fast test slow docs release lint check bench fuzz audit sbom clean \
	renew renew-hybrid

$(STAMP): setup.cfg pyproject.toml constraints/tested.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints/tested.txt -e '.[agents,jax,envs,ray,dev]'
	touch $@

# The demo needs neither JAX nor the development tools.
$(VENV)/.demo:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints/tested.txt -e '.[agents]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/parenvs compare t5-3b --cluster C --stages 4 --out demo/plan.json --plot demo/gantt.png
	$(BIN)/parenvs judge demo/plan.json

# A file's tests run in one worker, which makes what they share once.
TESTS := python -m pytest -n 2 --dist loadfile

fast: $(STAMP)
	$(BIN)/$(TESTS) -m 'not slow and not thorough'

test: $(STAMP)
	$(BIN)/$(TESTS)

slow: $(STAMP)
	$(BIN)/$(TESTS) -m slow

# Pages, entries and rankings that are cheap and without chance, made again: red where one differs.
renew: $(STAMP)
	$(BIN)/python benchmarks/renew.py

renew-hybrid: $(STAMP)
	$(BIN)/python benchmarks/make_sets.py hybrid.json hetero.json
	$(BIN)/python benchmarks/references.py hybrids
	$(BIN)/python benchmarks/leaderboard_references.py --changed --tasks hybrid hetero

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints/tested.txt -e '.[docs]'
	touch $@

# The leaderboard's own site, with every plan drawn, is a part of it.
docs: $(VENV)/.docs
	$(BIN)/python docs/pictures.py figures
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs build/docs
	$(BIN)/parenvs leaderboard site --out build/docs/leaderboard --docs ../
	$(BIN)/python docs/check_links.py build/docs
	find build/docs -name '*.html' ! -name fuzz.html ! -path '*/leaderboard/entries/*' -exec $(BIN)/codespell {} +

release: $(STAMP)
	$(BIN)/python benchmarks/release.py

# mypy sees agents/, datasets/ and leaderboard/ where they are installed: as parenvs.agents, ...
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/typed && mkdir -p build/typed/parenvs
	ln -s $(CURDIR)/parenvs/* $(addprefix $(CURDIR)/,agents datasets leaderboard) build/typed/parenvs
	cd build/typed && ../../$(BIN)/mypy --config-file ../../setup.cfg --cache-dir ../../.mypy_cache -p parenvs
	$(BIN)/codespell $$(git ls-files '*.py' '*.md' '*.cfg' '*.toml' '*.txt' Makefile CITATION.cff NOTICE)

check: lint test

# What goes wrong becomes a file of tests/corpus, which make test reads from then on.
fuzz: $(STAMP)
	$(BIN)/python -W ignore benchmarks/fuzz.py all --seconds $(SECONDS) --seed $(SEED) --out build

# Known vulnerabilities of what is installed; asks a service on the network.
audit: $(STAMP)
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --skip-editable

# What a plain installation depends on, as a CycloneDX list.
sbom:
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet -c constraints/tested.txt . cyclonedx-bom
	build/sbom/bin/cyclonedx-py environment build/sbom --output-reproducible -o build/sbom.json

bench: $(STAMP)
	$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) .nox build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
