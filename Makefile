# The commands of this project; `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.DEFAULT_GOAL := help
.PHONY: help demo up test check crash soak bench scale promises

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## five mails, a worker killed in the worst moment, exactly five arrive
	$(BIN)/python -m deploy.demo

up: $(INSTALLED) ## everything with the demo's agents and tools, until Ctrl-C
	$(BIN)/brainhands up --agents deploy.demo.agents --tools deploy.demo.tools

test: $(INSTALLED) ## the whole suite on embedded servers
	$(BIN)/pytest -n 2 --dist worksteal

check: $(INSTALLED) ## style, types, the direction of imports, declared packages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry brain hands outbox shared

crash: $(INSTALLED) ## each scenario, a kill at every commit and every publish
	$(BIN)/pytest -n 2 --dist worksteal --full-crash-matrix tests/crash

soak: $(INSTALLED) ## minutes of random sessions under random faults; SOAK="--seed 7 --minutes 10"
	$(BIN)/python -m tests.soak $(SOAK)

bench: $(INSTALLED) ## turns a second and hand-off times, to build/bench.json
	$(BIN)/python -m tests.bench

scale: $(INSTALLED) ## a tenth of ten million events against an empty store, to build/scale.json; SCALE="--part 1"
	$(BIN)/python -m tests.scale $(SCALE)

promises: $(INSTALLED) ## which promises are kept, to build/promises.json
	$(BIN)/pytest -n 2 --dist worksteal -m promise --promises-json build/promises.json

# Editables cannot be installed under hashes, hence two steps; the lock has the build backend.
$(INSTALLED): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	mkdir -p .house/brainhands
	ln -sfn ../../brain ../../hands ../../outbox ../../shared ../../shared/top-level/__init__.py ../../shared/top-level/py.typed .house/brainhands
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@
