# Two commands matter: `make lab` to learn, `make test` to check. `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help lab test quick stress browser check notebooks new-lesson new-exercise bench venv chromium clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

# OpenMP threads that sleep while they wait leave the cores to the ranks. In a container people often are root.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
# Our kernel (ddplab/kernel.py) starts at two thirds of the CPU time and memory.
KERNELS := $(CURDIR)/ddplab/jupyter
lab: venv  ## open JupyterLab on the lessons
	OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-PASSIVE} JUPYTER_PATH="$(KERNELS)$${JUPYTER_PATH:+:$$JUPYTER_PATH}" $(BIN)/jupyter lab $(AS_ROOT) --ServerApp.root_dir="$(CURDIR)" lessons/1_one_device/1.1_start_here.ipynb

test: venv chromium  ## run everything that CI runs
	$(BIN)/python tools/run_tests.py

quick: venv  ## run what starts no process, in under a minute
	$(BIN)/python tools/run_tests.py quick

stress: venv  ## repeat what fails once in a while, hundreds of times; every night in CI
	$(BIN)/python tools/run_tests.py stress

browser: venv chromium  ## run every notebook in a real JupyterLab, not only those that `make test` takes there
	DDPLAB_EVERY_PAGE=1 $(BIN)/python -m pytest tests/test_browser.py -k run_all

check: venv  ## report every exercise in exercises/: correct, not yet, not started
	$(BIN)/python -m ddplab grade exercises

notebooks: venv  ## execute lessons and solutions, regenerate exercises and pages
	$(BIN)/python tools/run_notebooks.py
	$(BIN)/python tools/make_exercises.py
	$(BIN)/python tools/make_pages.py

new-lesson: venv  ## lay out a lesson: make new-lesson NAME=4_ddp/4.9_name
	$(BIN)/python tools/new.py lesson $(NAME)

new-exercise: venv  ## lay out an exercise, its check and its tests: make new-exercise NAME=4_ddp/4.9_name
	$(BIN)/python tools/new.py exercise $(NAME)

bench: venv  ## measure the launcher beside its peers
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/launch.py

venv: .venv/installed  ## make .venv and install everything

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("ddplab needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@echo "Installing torch, JupyterLab and the rest into .venv, once: a minute or several, in silence."
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[test]'
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # on all cores, where pip compiles on one
	touch $@

chromium:
	@tools/get_chromium

clean:  ## remove .venv and caches
	rm -rf .venv .pytest_cache .ruff_cache *.egg-info
