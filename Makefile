# make demo    every domain on data that needs no download: a table in the terminal, demo/report.html, demo/report.json
# make test    all checks of a change, set-up included
# make docs    the documentation site, in site/: offline, warnings are errors
# make lint    the quick half of the checks: style, types, imports
# make test-lowest    the core and each extra on the lowest versions that pyproject.toml allows
# make test-pythons   the core's tests on every Python from 3.10 to 3.14 that uv finds on this machine
# make dry-run     a release: wheel and sdist, installed with each extra in empty environments, and the README there
# make fuzz MINUTES=60    random objectives, batches, texts and damaged files
# All set up .venv first, with uv if it is available and pip otherwise; with PINNED=1 in the versions of
# constraints.txt, with which the project was last tested, on Python 3.11.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
RUN := $(VENV)/bin/python
LOWEST := .venv-lowest
PYTHONS := 3.10 3.11 3.12 3.13 3.14
MINUTES ?= 60
CORE_TESTS := tests/core/objectives tests/core/batch tests/core/test_contract.py tests/core/test_errors.py \
  tests/core/test_views.py tests/core/test_schedules.py tests/core/test_sums.py
# the lowest supported torch, and the last numpy that it was built for
LOWEST_TORCH := torch==2.2.0 numpy<2

export HF_HUB_OFFLINE ?= 1
# compiled modules are kept, or each of the hundred processes that the tests start compiles PyTorch anew
unexport PYTHONDONTWRITEBYTECODE

# what an installed package consists of: the checkout is installed as a tree of links, which these make out of date
SOURCES = $(sort $(shell find core experimental plugins integrations -type f ! -name '*.py[co]'))

.PHONY: demo docs test test-slow test-lowest test-lowest-core test-pythons fuzz lint style types mypy pyright graph bench constraints dist dry-run clean help FORCE

help:
	@sed -n '/^#/!q; s/^# //p' Makefile

demo: $(if $(wildcard $(VENV)/installed),$(VENV)/ready,$(VENV)/extras)
	$(VENV)/bin/counterpoint demo --out demo --jobs $(JOBS)

docs: $(VENV)/ready
	$(RUN) docs/site_pages.py
	$(VENV)/bin/zensical build --clean --strict
	@echo "site/index.html; search needs a server: python -m http.server -d site"

# types are checked beside the tests, in the time that these wait for processes
test: $(VENV)/ready style
	@(nice $(MAKE) --no-print-directory types >$(VENV)/types.txt 2>&1; echo $$? >$(VENV)/types.code) & \
	$(RUN) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait; cat $(VENV)/types.txt; exit $$((tests | $$(cat $(VENV)/types.code)))

test-slow: $(VENV)/ready
	$(RUN) -m pytest -m slow

test-lowest: test-lowest-core $(VENV)/ready
	$(RUN) -m pytest -m slow tests/test_lowest.py

# the core alone, on the lowest versions that pyproject.toml allows, where torch.compile supports less, and leaving a
# process group may hang
test-lowest-core: $(LOWEST)/ready
	$(LOWEST)/bin/python -m pytest -n $(JOBS) $(CORE_TESTS) -k "not compiled and not processes"

# the core alone, on today's PyTorch, in a folder of its own for each Python that there is
test-pythons:
	@for version in $(PYTHONS); do \
	  uv python find --no-python-downloads --quiet $$version >/dev/null 2>&1 || { echo "Python $$version: not here"; continue; }; \
	  echo "Python $$version"; \
	  uv venv --quiet --allow-existing --python $$version .venv-$$version && \
	  uv pip install --quiet --python .venv-$$version/bin/python numpy pytest pytest-xdist hypothesis -e . && \
	  .venv-$$version/bin/python -m pytest -q -n $(JOBS) $(CORE_TESTS) -k "not compiled" || exit 1; \
	done

fuzz: $(VENV)/ready
	$(RUN) tests/support/fuzz.py $(MINUTES)

lint: style types

style: $(VENV)/ready
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/lint-imports --no-logo

# both at once: neither uses a second core
types: $(VENV)/ready
	@$(MAKE) --no-print-directory -j2 mypy pyright

mypy:
	$(VENV)/bin/mypy -p counterpoint
	$(VENV)/bin/mypy tests/support/typed_use.py

pyright:
	$(VENV)/bin/pyright

# the picture and the numbers of the import graph in docs/architecture.md
graph: $(VENV)/ready
	$(RUN) tests/support/import_graph.py

bench: $(VENV)/ready
	$(RUN) -m tests.bench.losses
	$(RUN) tests/bench/bench_import.py
	$(RUN) tests/bench/bench_graph.py --dataset demo
	$(RUN) tests/bench/bench_augment.py

# the names and versions of all packages in .venv
constraints: $(VENV)/ready
	$(RUN) tests/support/pinned.py > constraints.txt

dist: $(VENV)/ready
	rm -rf dist build/lib
	$(RUN) -m build --outdir dist .

# installs the files of `make dist` in empty environments, with each extra, and runs the README there; needs uv
dry-run: dist
	$(RUN) tests/support/dry_run.py dist

# links to the files instead of an import hook, so that editors, mypy and pyright find `import counterpoint`
$(VENV)/ready: $(VENV)/installed FORCE
	@echo $(SOURCES) | cmp -s - $@ || { \
	  rm -rf build/__editable__.*; \
	  $(call pip,$(VENV),--no-deps -e . --config-settings editable_mode=strict) && echo $(SOURCES) > $@; \
	}

$(VENV)/installed: pyproject.toml
	@echo "setting up $(VENV)"
	$(call environment,$(VENV))
	@$(call pip,$(VENV),-e '.[all]' --group dev $(if $(PINNED),-c constraints.txt))
	@rm -f $(VENV)/ready
	@touch $@

# the extras of users alone, for `make demo` in a new clone
$(VENV)/extras: pyproject.toml
	@echo "setting up $(VENV)"
	$(call environment,$(VENV))
	@$(call pip,$(VENV),-e '.[all]' $(if $(PINNED),-c constraints.txt))
	@touch $@

$(LOWEST)/ready: pyproject.toml
	@echo "setting up $(LOWEST)"
	$(call environment,$(LOWEST))
	@$(call pip,$(LOWEST),$(foreach package,$(LOWEST_TORCH),'$(package)') pytest pytest-xdist hypothesis)
	@$(call pip,$(LOWEST),--no-deps -e .)
	@touch $@

# $(call environment,folder): a fresh virtual environment, if there is none
define environment
	@command -v uv >/dev/null || $(PYTHON) -m pip install --quiet uv 2>/dev/null || true
	@test -x $(1)/bin/python || \
	  if command -v uv >/dev/null; then uv venv --quiet --python $(PYTHON) $(1); \
  else $(PYTHON) -m venv $(1) && $(1)/bin/python -m pip install --quiet 'pip>=25.1'; fi
endef

# $(call pip,environment,arguments): install packages with uv if there is one, else with pip
pip = if command -v uv >/dev/null; then uv pip install --quiet --python $(1)/bin/python $(2); \
  else $(1)/bin/python -m pip install --quiet $(2); fi

clean:
	rm -rf $(VENV) $(VENV)-3.* $(LOWEST) build dist demo site *.egg-info
