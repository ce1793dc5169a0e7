# Two commands do everything on a fresh machine: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo demo-deploy test test-full coverage lint hooks bench docs clean

demo: $(VENV)/.run
	rm -rf runs/demo
	PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh runs/demo

demo-deploy: $(VENV)/.dev
	mkdir -p runs && cd runs && PATH="$(abspath $(BIN)):$$PATH" sh ../examples/deploy.sh

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist loadscope

test-full: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist loadscope -m full

# Branch coverage, of child processes too; the pages with every line are build/coverage/index.html
coverage: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist loadscope --cov --cov-report=term --cov-report=html

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist site src/*.egg-info

$(VENV)/.run: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[report]"
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[all]"
	touch $@

$(VENV)/.docs: $(VENV)/.run
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[report,docs]"
	touch $@
