# Two commands for a stranger: `make demo` shows what sirc does, `make test` is everything CI runs.
# `make quick` leaves out what is slow, opens a browser or needs a GPU: a verdict within a minute, while you work.
# All make their own .venv and need only python3 (3.11 or newer) and make.
PYTHON ?= python3
BIN := .venv/bin
# What is installed: `demo` has what the demo needs, `dev` that and all that the tests need.
DEMO := .venv/.installed-demo
DEV := .venv/.installed-dev

# uv trusts the certificates of the system, as pip does: networks with a proxy of their own need it.
export UV_NATIVE_TLS := 1
export UV_SYSTEM_CERTS := 1

# Tests start many interpreters: each would compile torch anew if none might keep the bytecode.
unexport PYTHONDONTWRITEBYTECODE

CORES := $(shell getconf _NPROCESSORS_ONLN)
# Two more than there are cores: many tests wait for a browser, a server or another process. None of `quick` does.
WORKERS ?= $(shell echo $$(($(CORES) + 2)))

.PHONY: test types suite quick attack demo demo-time docs screenshot lint bench release clean

test: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/python tests/support/browser.py --install >/dev/null
	@$(MAKE) --no-print-directory --jobs=2 types suite

types: $(DEV)
	$(BIN)/mypy

suite: $(DEV)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

quick: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n $(CORES) --dist worksteal --hypothesis-profile quick \
	  -m "not slow and not browser and not gpu"

# Tries to break what docs/security.md promises, for some minutes, and prints its table.
attack: $(DEV)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m attack --attack-scale 10

demo: demo-time $(DEMO)
	$(BIN)/sirc demo

demo-time:
	@test -e $(DEMO) || echo "first the packages are installed, torch among them: some minutes, by your network; nothing is printed"
	@echo "the demo then takes one to four minutes on two idle cores"

# The site, in site/. It opens from disk; searching it takes a server: `python3 -m http.server --directory site`.
docs: $(DEV)
	$(BIN)/python docs/tools/gather.py build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html"

# The README's picture of the page, from what `make demo` left.
screenshot: $(DEV)
	$(BIN)/python docs/screenshot.py sirc-demo/report.html docs/images/report.png

lint: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV)
	$(BIN)/python benchmarks/scores.py
	$(BIN)/python benchmarks/fit.py
	$(BIN)/python benchmarks/metrics.py
	$(BIN)/python benchmarks/extract.py
	$(BIN)/python benchmarks/selective.py
	$(BIN)/python benchmarks/scale.py

# Builds wheel and sdist into dist/, looks into them, and tries each extra in a fresh environment: about ten minutes.
release: $(DEV)
	$(BIN)/python release/check.py $(EXTRAS)

$(DEMO) $(DEV): .venv/.installed-%: pyproject.toml src/sirc/__init__.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sirc needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Set PYTHON=/path/to/python3.11." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments: it has no ensurepip." >&2; \
	    echo "On Debian and Ubuntu: apt-get install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[$*]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
