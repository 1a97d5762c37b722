# make demo    every domain on data that needs no download: a table in the terminal, demo/report.html, demo/results.json
# make test    everything that is checked on every change, set-up included
# Both set up .venv by themselves, with uv where it can be had and plain pip otherwise; with PINNED=1 in the versions of
# constraints.txt, which are those that the project was last tested with, on Python 3.11.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
RUN := $(VENV)/bin/python
LOWEST := .venv-lowest
# the lowest claimed torch, and the last numpy that it was built for
LOWEST_TORCH := torch==2.2.0 numpy<2

export HF_HUB_OFFLINE ?= 1

.PHONY: demo test test-slow test-lowest lint bench constraints dist clean help

help:
	@sed -n 's/^# //p' Makefile

demo: $(VENV)/ready
	$(VENV)/bin/counterpoint demo --out demo --jobs $(JOBS)

test: $(VENV)/ready lint
	$(RUN) -m pytest -n $(JOBS)

test-slow: $(VENV)/ready
	$(RUN) -m pytest -m slow

# the core alone, on the lowest versions that pyproject.toml claims, where torch.compile knows less
test-lowest: $(LOWEST)/ready
	$(LOWEST)/bin/python -m pytest -n $(JOBS) \
	  tests/core/objectives tests/core/test_contract.py tests/core/test_errors.py tests/core/test_perturb.py \
	  -k "not compiled"

lint: $(VENV)/ready
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

bench: $(VENV)/ready
	$(RUN) -m tests.bench.losses
	$(RUN) tests/bench/bench_import.py
	$(RUN) tests/bench/bench_graph.py --dataset demo
	$(RUN) tests/bench/bench_augment.py

# the versions of everything that is in .venv now, names and versions only
constraints: $(VENV)/ready
	$(RUN) tests/support/pinned.py > constraints.txt

dist: $(VENV)/ready
	rm -rf dist
	$(RUN) -m build --outdir dist .

$(VENV)/ready: pyproject.toml
	$(call install,$(VENV),-e '.[dev]' $(if $(PINNED),-c constraints.txt))

$(LOWEST)/ready: pyproject.toml
	$(call install,$(LOWEST),$(foreach package,$(LOWEST_TORCH),'$(package)') pytest pytest-xdist hypothesis)
	$(call install,$(LOWEST),--no-deps -e .)

# $(call install,environment,what): a fresh environment if there is none, the packages, and the mark that it is ready
define install
	@echo "setting up $(1)"
	@command -v uv >/dev/null || $(PYTHON) -m pip install --quiet uv 2>/dev/null || true
	@if command -v uv >/dev/null; then \
	  test -x $(1)/bin/python || uv venv --quiet --python $(PYTHON) $(1); \
	  uv pip install --quiet --python $(1)/bin/python $(2); \
	else \
	  test -x $(1)/bin/python || $(PYTHON) -m venv $(1); \
	  $(1)/bin/python -m pip install --quiet $(2); \
	fi
	@touch $(1)/ready
endef

clean:
	rm -rf $(VENV) $(LOWEST) build dist demo *.egg-info
