# The front door. Every target sets up by itself what it needs: a fresh clone, make and Python >= 3.11
# are enough. `make` alone prints what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV := .venv
RUN := $(VENV)/bin/python

# The name of the stamp holds what the environment was built from, and where: a new lock, a changed
# pyproject.toml or a moved directory makes a new environment, everything else keeps the old one.
BUILT_FROM := $(shell { cat requirements.lock pyproject.toml; echo "$(CURDIR)"; } | cksum | cut -d ' ' -f 1)
READY := $(VENV)/.ready-$(BUILT_FROM)

# Options of single targets.
ONLY ?=
QUICK ?=
SECONDS ?= 60
SEED ?=
SEEDS ?= 10000
FIRST ?= 1
BUG ?=
CRASHES ?= 200
CONNECTIONS ?= 1000
MEGABYTES ?= 512
CUTS ?= 1000
DOCUMENTS ?= 1000000
KILL ?= all
TIMES ?= 20
PYSPARK ?= 4.2.1
PYTEST_ARGS ?=
DEMO_ARGS ?=

# What the locks are made from. Spark has one of its own, which holds all of the other: it is installed
# on top, into the same environment, by the targets that need it.
LOCK_INPUT := --group dev --extra tls pyproject.toml
SPARK_LOCK_INPUT := --group dev --group spark-test --extra tls --extra spark --constraint requirements.lock \
	pyproject.toml
SPARK_READY := $(VENV)/.ready-spark-$(shell { cat requirements-spark.lock pyproject.toml; echo "$(CURDIR)"; } | cksum | cut -d ' ' -f 1)
# So has the browser's driver.
BROWSER_LOCK_INPUT := --group dev --group browser --extra tls --constraint requirements.lock pyproject.toml
BROWSER_READY := $(VENV)/.ready-browser-$(shell { cat requirements-browser.lock pyproject.toml; echo "$(CURDIR)"; } | cksum | cut -d ' ' -f 1)
LOCK_OPTIONS := --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
UV_VERSION := 0.13.7

# What needs Spark, and so its own environment; everything else runs without.
SPARK_TESTS := tests/spark tests/cli/test_sync.py tests/cli/test_verify.py tests/cli/test_history.py \
	tests/cli/test_tables.py \
	tests/test_examples.py tests/test_docs_spark.py tests/cli/test_options_tables.py tests/test_commands.py \
	tests/demo tests/cli/test_demo.py
# A demo ends its JVM when it ends: not the one that all other tests of a run share.
DEMO_TESTS := tests/demo tests/cli/test_demo.py

.PHONY: help environment demo test check interop spark clusters older kills moves browser screenshots bench fuzz sim soak reference docs figures lock clean

help: ## print this list
	@echo "usage: make <target>"
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## (.*)/  \1|\2/' | column -t -s '|' 2>/dev/null \
		|| grep -E '^[a-z]+:.*##' Makefile

environment: $(SPARK_READY) $(BROWSER_READY) ## set up what all other targets need; each does so by itself too

demo: $(SPARK_READY) ## a whole pipeline in two minutes: node, workload, failover, tables, proof (DEMO_ARGS=...)
	@$(VENV)/bin/headrace demo --out build/demo $(DEMO_ARGS)

test: $(READY) ## run the tests (PYTEST_ARGS="tests/wire -x" to choose)
	@$(RUN) -m pytest -m "not interop and not browser and not kills" $(addprefix --ignore=,$(SPARK_TESTS)) $(PYTEST_ARGS)

spark: $(SPARK_READY) ## the tests of the pipeline (adds Spark to the environment; SLOW=1: kills instead)
	@$(RUN) -m pytest -m "$(if $(SLOW),slow,not slow)" $(filter-out $(DEMO_TESTS),$(SPARK_TESTS)) $(PYTEST_ARGS)
	@$(RUN) -m pytest -m "$(if $(SLOW),slow,not slow)" $(DEMO_TESTS) $(PYTEST_ARGS) || [ $$? -eq 5 ]

clusters: $(SPARK_READY) ## the same sync on a standalone cluster, through Spark Connect, on the Java from PyPI
	@$(RUN) -m pytest -m slow tests/spark/test_clusters.py $(PYTEST_ARGS)

older: build/spark-$(PYSPARK)/.ready ## the pipeline on an older Spark (PYSPARK=4.2.1), with MERGE into a Delta table (needs Maven)
	@build/spark-$(PYSPARK)/bin/python -m pytest -m "not slow" tests/spark $(PYTEST_ARGS)
	@build/spark-$(PYSPARK)/bin/python -m pytest -m slow tests/spark/test_merge.py $(PYTEST_ARGS)

kills: $(SPARK_READY) ## kill a running sync (KILL=driver|executor|worker|node|all, TIMES=20, SEED=n)
	@$(RUN) -m tests.spark.campaign --kill "$(KILL)" --times "$(TIMES)" $(if $(SEED),--seed "$(SEED)")

moves: $(READY) ## kill -9 the source, the target and the manager at every step of a move
	@$(RUN) -m pytest tests/cluster/test_kills.py $(PYTEST_ARGS)

check: $(SPARK_READY) ## ruff, mypy, and the tests of layers, docs and tidiness
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(RUN) -m pytest -q tests/test_layers.py tests/test_docs.py tests/test_tidy.py tests/test_reference.py

interop: $(READY) ## the tests against foreign tools (tshark, libmemcached; Go and Maven if they are here)
	@.ci/install-tools
	@$(RUN) -m tools.foreign_clients
	@$(RUN) -m pytest -m interop tests/interop $(PYTEST_ARGS)

browser: $(BROWSER_READY) ## the tests of the live page in Chromium (fetches one where it can; HEADRACE_CHROMIUM=path names one)
	@$(RUN) -m tools.browser --install || .ci/install-tools chromium
	@$(RUN) -m pytest -m browser -s tests/browser $(PYTEST_ARGS)

screenshots: $(SPARK_READY) $(BROWSER_READY) ## run the demo for docs/demo/report.html, take the pictures of docs/images (needs a Chromium)
	@$(RUN) -m tools.browser --install || .ci/install-tools chromium
	@$(RUN) -m tools.screenshots

bench: $(READY) ## measure (ONLY=prefix chooses, QUICK=1 only proves that it runs)
	@$(RUN) -m benchmarks --only "$(ONLY)" $(if $(QUICK),--quick)

soak: $(READY) ## kill, crowd, starve, cut (CRASHES=200, CONNECTIONS=1000, MEGABYTES=512, CUTS=1000, SEED=n)
	@$(RUN) -m tests.soak --crashes "$(CRASHES)" --connections "$(CONNECTIONS)" --megabytes "$(MEGABYTES)" \
		--cuts "$(CUTS)" --documents "$(DOCUMENTS)" \
		$(if $(SEED),--seed "$(SEED)")

sim: $(READY) ## simulate clusters (SEEDS=10000 from FIRST=1; SEED=n tells one; BUG=name|all plants one)
	@$(RUN) -m tests.sim.world --seeds "$(SEEDS)" --first "$(FIRST)" $(if $(SEED),--seed "$(SEED)") \
		$(if $(BUG),--bug "$(BUG)")

fuzz: $(READY) ## throw broken bytes at the decoders (SECONDS=60, SEED=n replays one)
	@$(RUN) -m tests.fuzz --seconds "$(SECONDS)" --only "$(ONLY)" $(if $(SEED),--seed "$(SEED)")

reference: $(READY) ## write the generated pages anew: docs/reference, docs/figures.md, and docs/protocol.md's tables
	@$(RUN) -m tools.reference
	@$(RUN) -m tools.docs_reference

docs: $(READY) ## build the documentation as a site in build/docs, without a network
	@$(RUN) -m tools.docs

figures: $(READY) ## take what `make bench` measured over into docs/figures.json and its page
	@$(RUN) -m tools.docs_figures
	@$(RUN) -m tools.docs_reference

lock: build/uv/bin/uv ## make requirements.lock anew (UPGRADE=1 also moves what is pinned)
	@$(call compile_lock,requirements.lock,$(LOCK_INPUT))
	@$(call compile_lock,requirements-spark.lock,$(SPARK_LOCK_INPUT))
	@$(call compile_lock,requirements-browser.lock,$(BROWSER_LOCK_INPUT))

define compile_lock
cp $(1) build/$(1) 2>/dev/null || true; \
build/uv/bin/uv pip compile --quiet $(LOCK_OPTIONS) $(if $(UPGRADE),--upgrade) --output-file build/$(1) $(2); \
{ echo "# What make installs, with hashes; made by \`make lock\`:"; \
  echo "#   uv pip compile $(LOCK_OPTIONS) $(strip $(2))"; \
  cat build/$(1); } > $(1); \
echo "$(1): $$(grep -c '==' $(1)) pins"
endef

clean: ## remove everything that was built, the environment too
	@rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A shell loop and not a make variable: it runs only when an environment has to be built.
define find_python
found=""; \
for candidate in $(PYTHON) python3.14 python3.13 python3.12 python3.11 python3 python; do \
	if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		found="$$candidate"; break; \
	fi; \
done; \
if [ -z "$$found" ]; then \
	echo "headrace needs Python 3.11 or newer and found none; install one or say make PYTHON=/path/to/python3." >&2; \
	exit 1; \
fi; \
if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	echo "$$found has no venv module; install it (on Debian and Ubuntu: apt install python3-venv)." >&2; \
	exit 1; \
fi
endef

$(READY):
	@$(find_python); \
	echo "setting up $(VENV) with $$("$$found" --version) from requirements.lock"; \
	"$$found" -m venv --clear $(VENV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(SPARK_READY): $(READY)
	@echo "adding Spark to $(VENV) from requirements-spark.lock: 650 MB, once"
	@# Spark comes as a source archive: without --use-pep517 an older pip builds it the old way, and says so at length.
	@$(RUN) -m pip install --quiet --disable-pip-version-check --use-pep517 --require-hashes -r requirements-spark.lock
	@echo "compiling headrace's kernels, once"
	@$(RUN) -c "from headrace.cli.installation import kernels; print(kernels().found)"
	@touch $@

# The lock with another Spark in the place of its own.
build/spark-$(PYSPARK)/.ready: requirements-spark.lock
	@$(find_python); "$$found" -m venv --clear build/spark-$(PYSPARK)
	@awk '/^[a-z]/ { other = !/^pyspark==/ } other' requirements-spark.lock > build/spark-$(PYSPARK)/others.lock
	@echo "setting up build/spark-$(PYSPARK): 630 MB, once"
	@build/spark-$(PYSPARK)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		-r build/spark-$(PYSPARK)/others.lock
	@build/spark-$(PYSPARK)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --use-pep517 \
		"pyspark==$(PYSPARK)"
	@touch $@

$(BROWSER_READY): $(READY)
	@echo "adding Playwright to $(VENV) from requirements-browser.lock: 50 MB, once"
	@$(RUN) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-browser.lock
	@touch $@

build/uv/bin/uv:
	@$(find_python); "$$found" -m venv --clear build/uv
	@build/uv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
