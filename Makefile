# One rule a step; what did not change does not run again.  `make help` lists the targets.
SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := book
.DELETE_ON_ERROR:
.SUFFIXES:

# Two kernels at a time, one thread each: on two cores more threads are many times slower.
MAKEFLAGS += -j2
ifneq ($(filter output-sync,$(.FEATURES)),)
MAKEFLAGS += --output-sync=target
endif
export OMP_NUM_THREADS := 1
# Kernels come from .venv alone, start alike on every machine, and print no progress bars.
export JUPYTER_PREFER_ENV_PATH := 1
unexport JUPYTER_PATH
export IPYTHONDIR := $(CURDIR)/_build/ipython
export TQDM_DISABLE := 1
export PYTHONPATH := lib
export PATH := $(CURDIR)/.venv/bin:$(PATH)

PYTHON   ?= python3
VENV     := .venv/.installed
PROFILE  := $(IPYTHONDIR)/profile_default/ipython_kernel_config.py
BOOK     := _build/html/index.html
# A chapter with a jupytext header runs; the other pages are text.
PAGES    := $(wildcard chapters/*.md chapters/appendix/*.md)
CHAPTERS := $(if $(PAGES),$(shell grep -l '^jupytext:' $(PAGES)))
EXECUTED := $(CHAPTERS:chapters/%.md=_build/run/%.ipynb)
.SECONDARY: $(CHAPTERS:chapters/%.md=_build/src/%.ipynb)
PRESS    := $(shell find lib/press -name '*.py')
LIBRARY  := $(shell find lib/normgeom -name '*.py') $(wildcard figures/data/*)
NBVAL    := $(patsubst %,nbval/%,$(wildcard notebooks/*.ipynb notebooks/appendix/*.ipynb))

.PHONY: book run notebooks colab figures bench record test lint unit serve clean help $(NBVAL)

book: $(BOOK)  ## run the chapters and build the pages: _build/html/index.html
	@echo "The book is at $(BOOK)"

run: $(EXECUTED)  ## run the chapters

notebooks: $(BOOK)  ## write notebooks/ from the executed chapters
	python -m press notebooks

colab: | $(VENV)  ## write _build/colab: notebooks/ with the library inside, one file to upload
	python -m press colab

figures: $(EXECUTED)  ## write the chapters' named figures to figures/
	python -m press figures

bench: | $(VENV)  ## measure the speed ratios again, in turns, and write them to figures/data and the README
	python -m records speed
	python -m records norms
	python -m records overhead
	python -m records watched
	python -m records dropping --part speed
	python -m records quote

# The long runs.  Finished ones stay in _build; those on a real model need a folder with it, a text, and what the two are.
record: | $(VENV)  ## train placements and twins, measure a model again: MODEL=… NAME=… SOURCE=… TEXT=… CORPUS=…
	python -m records placement
	python -m records training
	python -m records dropping --part losses
	python -m records gains "$(MODEL)" "$(NAME)" --source "$(SOURCE)"
	python -m records zeroed "$(MODEL)" "$(NAME)" "$(TEXT)" --corpus "$(CORPUS)"
	python -m records massive "$(MODEL)" "$(NAME)" "$(TEXT)" --corpus "$(CORPUS)"
	python -m records angles "$(MODEL)" "$(NAME)" "$(TEXT)" --corpus "$(CORPUS)" --windows 1024 --length 128

test: lint unit $(NBVAL)  ## everything that can fail: style, tests, notebooks, the book
	@echo "All tests passed: style, library, press, book and $(words $(NBVAL)) notebooks."

serve: $(BOOK)  ## look at the book on http://127.0.0.1:8000
	python -m http.server --bind 127.0.0.1 --directory _build/html 8000

clean:  ## remove what was built; .venv stays
	rm -rf _build

help:  ## list the targets
	@sed -nE 's/^([a-z]+):.*  ## (.*)/\1\t\2/p' Makefile | expand -t 12

$(VENV): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Python 3.11 or newer is needed; name it with PYTHON=…" >&2; exit 1; }
	@echo "installing into .venv"
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install --quiet -c constraints.txt -e ".[book,test,hub,dev]" || \
	  { echo "make: installing the packages of pyproject.toml into .venv failed; this step needs the network" >&2; \
	    exit 1; }
	@touch $@

_build/src/%.ipynb: chapters/%.md | $(VENV)
	@mkdir -p $(@D)
	@jupytext --quiet --to ipynb --output $@ $<

# The notebook appears when it is complete: a failed run leaves its half in _build/part.
_build/run/%.ipynb: _build/src/%.ipynb $(LIBRARY) | $(PROFILE)
	@mkdir -p $(@D) $(dir _build/part/$*)
	@echo "running $*"
	@papermill --kernel python3 --no-progress-bar --log-level WARNING $< _build/part/$*.ipynb || \
	  { echo "make: chapter $* failed; its cells up to the error are in _build/part/$*.ipynb" >&2; exit 1; }
	@mv _build/part/$*.ipynb $@

$(BOOK): $(EXECUTED) $(PAGES) $(PRESS) $(wildcard chapters/*.bib _static/*) _config.yml _toc.yml | $(VENV)
	python -m press stage
	python -m press site

lint: | $(VENV)
	ruff check
	ruff format --check

unit: $(BOOK)
	pytest

# Kernels talk to this machine alone; each would warn that they do so without encryption.
$(PROFILE):
	@mkdir -p $(@D)
	@echo 'c.IPKernelApp.log_level = "ERROR"' > $@

$(NBVAL): nbval/%: | $(VENV) $(PROFILE)
	pytest -p no:cacheprovider --nbval $*
