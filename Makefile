# Every target makes its own virtual environment in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick check bench docs docs-check clean

.venv/core: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ .venv/core

demo: .venv/core  ## train CartPole-v1 until it is solved
	$(BIN)/repertory train CartPole-v1 --target-score 475

check: .venv/dev  ## what can be known without running it
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Four at a time on two cores: many tests wait for a process, a clock or a signal.
test: check  ## the checks, then every test
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

quick: .venv/dev  ## the fast tests, under 90 seconds on 2 cores
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m 'not slow'

docs: .venv/dev  ## the documentation site, in build/site
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-check: .venv/dev  ## run every command and code block of README and docs
	$(BIN)/python -m pytest tests/docs_check.py

bench: .venv/dev  ## the speed figures that need no peer
	$(BIN)/python benchmarks/learner_speed.py

clean:
	rm -rf .venv
