# One rule per step; steps whose inputs did not change do not run again.  `make help` lists the targets.
SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

# Two kernels at a time, one thread each: on two cores, more threads are many times slower.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j2
endif
ifeq ($(filter experiments serve,$(MAKECMDGOALS)),)  # these print while they run
MAKEFLAGS += $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
endif
export OMP_NUM_THREADS := 1
# Kernels come only from .venv, start in the same way on every machine, and print no progress bars.
export JUPYTER_PREFER_ENV_PATH := 1
unexport JUPYTER_PATH
export IPYTHONDIR := $(CURDIR)/_build/ipython
export TQDM_DISABLE := 1
export PYTHONPATH := $(CURDIR)/lib
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Keep large blocks of memory: returning them to the system and zeroing new ones takes a fifth of the time of training.
KEEP := env MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824

PYTHON   ?= python3
VENV     := .venv/.installed
PROFILE  := $(IPYTHONDIR)/profile_default/ipython_kernel_config.py
BOOK     := _build/html/index.html
PDF      := _build/pdf/the-geometry-of-layer-normalization.pdf
# Pages with a jupytext header are notebooks and run; the others are text.
PAGES    := $(wildcard chapters/*.md chapters/appendix/*.md)
CHAPTERS := $(if $(PAGES),$(shell grep -l '^jupytext:' $(PAGES)))
EXECUTED := $(CHAPTERS:chapters/%.md=_build/run/%.ipynb)
.SECONDARY: $(CHAPTERS:chapters/%.md=_build/src/%.ipynb)
# Only the pages use the records of claims at many seeds; chapters do not read them.
CLAIMED  := $(wildcard figures/data/claims-*)
LIBRARY  := $(shell find lib/normgeom lib/normgeom_lab -name '*.py') $(filter-out $(CLAIMED),$(wildcard figures/data/*))
PRESS    := $(shell find lib/press -name '*.py') $(CLAIMED) $(wildcard chapters/*.bib chapters/*.yml chapters/_*/* figures/*.svg)
NBVAL    := $(patsubst %,nbval/%,$(wildcard notebooks/*.ipynb notebooks/appendix/*.ipynb))
SUITES   := $(patsubst tests/%/,suite/%,$(filter-out %/peers/ %/__pycache__/,$(wildcard tests/*/))) suite/doctests
PYTEST   := pytest -p no:cacheprovider

# $(call timed,NAME,COMMAND): run COMMAND, and store its user, system and wall seconds for `press times`.
timed = mkdir -p $(dir _build/times/$(1)) && TIMEFORMAT='%U %S %R' && exec 3>&2 && \
  { time $(KEEP) $(2) 2>&3; } 2> _build/times/$(1)

.PHONY: book serve check test ci notebooks figures pdf colab experiments release clean help lint slow rounding $(NBVAL) $(SUITES)

book: $(BOOK)  ## run the chapters and build the pages: _build/html/index.html
	@echo "The book is at $(BOOK)"

serve: $(BOOK)  ## serve the book at http://127.0.0.1:8000
	python -m http.server --bind 127.0.0.1 --directory _build/html 8000

# A chapter runs only if its own code changed; the tests of a room show the effect of an edit of the library.
check: lint  ## check what edits break most often, in under a minute: style, labels, checks, records, notebooks
	@+$(MAKE) --no-print-directory LIBRARY= $(EXECUTED)
	@python -m press check
	@python -m experiments --check || [ -z "$(CI)" ]  # outside CI, continue
	@$(PYTEST) tests/book/test_reading_paths.py tests/press/test_documents.py
	@$(PYTEST) tests/book/test_sync.py > /dev/null || \
	  { echo "make: notebooks/ or figures/ is out of date; run make notebooks figures before you commit" >&2; exit 1; }

test: lint $(SUITES)  ## test style, library and pages, and compare notebooks/ with the run of make book
	@python -m press times test

ci: export CI := 1
ci: test slow rounding $(NBVAL)  ## make test, slow tests, other rounding, nbval on every notebook; time limits, records
	@python -m experiments --check
	@python -m press times book

notebooks: $(BOOK)  ## write notebooks/ from the executed chapters
	python -m press notebooks

figures: $(EXECUTED)  ## write the chapters' named figures to figures/
	python -m press figures

pdf: $(PDF)  ## print the built pages as one PDF; needs Chromium
	@echo "The PDF is at $(PDF)"

colab: | $(VENV)  ## write _build/colab: notebooks/, and the wheel to upload with a notebook
	rm -rf _build/colab
	cp -R notebooks _build/colab
	uv build --quiet --no-build-isolation --out-dir _build/colab && rm _build/colab/*.tar.gz

experiments: | $(VENV)  ## measure the records in figures/data that are missing or stale, or only ONLY=names
	env -u OMP_NUM_THREADS -u TQDM_DISABLE python -m experiments $(ONLY)

release: $(BOOK) $(PDF)  ## write _build/release: source archive, wheel, pages and PDF
	rm -rf _build/release
	uv build --quiet --out-dir _build/release
	cp $(PDF) _build/release
	tar -czf _build/release/pages.tar.gz -C _build html

clean:  ## remove _build, but not .venv
	rm -rf _build

help:  ## list the targets
	@awk -F ':.*  ## ' '/^[a-z]+:.*  ## /{ printf "%-12s %s\n", $$1, $$2 }' Makefile

$(VENV): constraints.txt pyproject.toml
	@echo "installing into .venv (needs a network)"
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install --quiet -c constraints.txt -e ".[book,test,hub,dev]"
	@touch $@

_build/src/%.ipynb: chapters/%.md | $(VENV)
	@mkdir -p $(@D)
	@jupytext --quiet --to ipynb --output $@ $<

# A failed run leaves a partial notebook in _build/part.  If text changed but neither code nor library, nothing runs.
_build/run/%.ipynb: _build/src/%.ipynb $(LIBRARY) | $(PROFILE)
	@mkdir -p $(@D) $(dir _build/part/$*)
	@if [ "$?" = "$<" ] && python -m press reuse $< $@; then exit; fi; \
	  echo "running $*"; \
	  $(call timed,book/$*,papermill --kernel python3 --no-progress-bar --no-request-save-on-cell-execute \
	  --log-level WARNING $< _build/part/$*.ipynb) || \
	  { echo "make: chapter $* failed; its cells up to the error are in _build/part/$*.ipynb" >&2; exit 1; }; \
	  mv _build/part/$*.ipynb $@

$(BOOK): $(EXECUTED) $(PAGES) $(PRESS) _config.yml _toc.yml pyproject.toml CITATION.cff | $(VENV)
	@$(call timed,book/pages,python -m press pages)
	@$(if $(CI),:,python -m press times book)

$(PDF): $(BOOK)
	@python -m press pdf

lint: | $(VENV)
	@$(call timed,test/style,sh -c 'ruff check && ruff format --check && deno fmt -q --check --line-width=120 chapters/_*/*.js && \
	  deno lint -q --rules-exclude=no-empty --rules-exclude=no-window chapters/_*/*.js')

suite/book: $(BOOK)
suite/doctests: WHAT := --doctest-modules lib/normgeom
$(SUITES): suite/%: | $(VENV) $(PROFILE)
	@$(call timed,test/$*,$(PYTEST) $(or $(WHAT),tests/$*))

# Other processors round differently; these tests run torch's kernels without vector instructions.
rounding: WHAT := -m "numerical and not compiles and not slow" tests/lib tests/lab
rounding: KEEP += ATEN_CPU_CAPABILITY=default
slow rounding: $(BOOK)
	@$(call timed,ci/$@,$(PYTEST) $(or $(WHAT),-m slow tests))

$(NBVAL): export PYTHONPATH := $(CURDIR)/lib:$(CURDIR)/tests
$(NBVAL): nbval/%: | $(VENV) $(PROFILE)
	@$(call timed,ci/$(notdir $*),$(PYTEST) -p patience --nbval --nbval-sanitize-with tests/nbval.cfg $*)

# Hide kernels' warnings at shutdown.  Collecting garbage less often saves a fifth of the time of their imports.
$(PROFILE): Makefile
	@mkdir -p $(@D)
	@echo 'c.IPKernelApp.log_level = "CRITICAL"' > $@
	@echo 'c.IPKernelApp.exec_lines = ["import gc; gc.set_threshold(100_000, 20, 100); del gc"]' >> $@
