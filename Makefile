# Every task of this repository. `make` alone lists them.
#
# Nothing is built inside the checkout: virtual environments, tools, images and the cluster's parts go to
# $XDG_CACHE_HOME/stoker (~/.cache/stoker), each named by a hash of its inputs.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

# The first Python that is new enough; `make PYTHON=/path/to/python …` chooses another.
ifndef PYTHON
PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11; do \
  "$$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
endif
python = $(or $(PYTHON),$(error Python 3.11 or newer with the module ensurepip is missing: install it (Debian and Ubuntu: apt install python3-venv), or run make PYTHON=/path/to/python))
export PYTHON

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/stoker
export CLUSTER_CACHE := $(CACHE)

# The cluster: embedded, kind or existing. Empty: kind if a Docker engine answers, else embedded.
STOKER_CLUSTER ?=
unexport STOKER_CLUSTER
# tests/cluster does not know Stoker, so it has its own variable for the choice.
export CLUSTER_PROVIDER := $(STOKER_CLUSTER)
cluster = PYTHONPATH=tests $(python) -m cluster

# Linters first: they find a typing mistake at once. Then what needs the cluster: it takes longest, and one worker runs
# it while the others run the rest.
SUITES := tests/lint tests/browser tests/cluster tests/e2e runner tests/fetch tests/charts release images benchmarks
# To choose tests or add options: make test-runner PYTEST_ARGS="-k guard -x"
PYTEST_ARGS ?=
venv = venv="$$($(python) tests/dev-venv)" &&
pytest = $(venv) "$$venv/bin/python" -m pytest -v
# Workers share the suites (see conftest.py); PYTEST_ARGS="-n 0" uses one process. The one with the cluster often waits
# for pods; pods of `make test-full` leave no processor to a third.
two = -n 2
three = -n 3
fast = -m "not full and not matrix and not gpu"
# More of the slowest tests than usual: this run is the one to shorten.
full = -m "(full or gpu) and not matrix and not learning" --durations=100
kills = export KILL_MATRIX_REPORT=docs/reference/kill-matrix.md;

##@ Start here

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "; print "Usage: make TARGET [STOKER_CLUSTER=embedded|kind|existing] [PYTHON=python3.12]"} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Fine-tune a small model here as a two-node TrainJob, without Kubernetes (needs only Python).
	@: $(python)
	@examples/demo/local

.PHONY: demo-cluster
demo-cluster: ## Do the same on a Kubernetes cluster started for it: helm install, kubectl apply, two pods.
	@: $(python)
	@examples/demo/cluster

.PHONY: test
test: ## Run everything that fits CI: lint, unit, chart, image, cluster and end-to-end tests.
	@$(pytest) $(three) $(fast) $(PYTEST_ARGS) $(SUITES)

##@ Tests

.PHONY: lint
lint: ## Run ruff, mypy, yamllint, shellcheck, hadolint, actionlint and this repository's own rules.
	@$(pytest) $(PYTEST_ARGS) tests/lint

.PHONY: test-runner
test-runner: ## Test the runner, from pure plans to local two-process runs.
	@$(pytest) $(two) $(fast) $(PYTEST_ARGS) runner tests/fetch

.PHONY: test-charts
test-charts: ## Test the charts: helm lint, helm-unittest, kubeconform, golden renders, refused values.
	@$(pytest) $(two) $(fast) $(PYTEST_ARGS) tests/charts

.PHONY: test-release
test-release: ## Test publishing: mirror list, digests, version policy, and a release to a local registry.
	@$(pytest) $(fast) $(PYTEST_ARGS) release

.PHONY: test-benchmarks
test-benchmarks: ## Test the benchmarks' own code: arguments, progress, and patience with jobs that hang.
	@$(pytest) $(fast) $(PYTEST_ARGS) benchmarks

.PHONY: test-cluster
test-cluster: ## Test the cluster that the tests start.
	@$(pytest) $(fast) $(PYTEST_ARGS) tests/cluster

.PHONY: test-e2e
test-e2e: ## Run real TrainJobs on a real cluster, and test their images.
	@$(pytest) $(fast) $(PYTEST_ARGS) images tests/e2e

.PHONY: test-gpu
test-gpu: ## Run the tests that need an NVIDIA GPU; where there is none, they are skipped by name.
	@$(pytest) -m gpu $(PYTEST_ARGS) runner

.PHONY: test-full
test-full: ## Run what `make test` leaves out as too long for CI; of the kill matrices below, a twelfth each.
	@$(pytest) $(two) $(full) $(PYTEST_ARGS) $(SUITES)

.PHONY: test-learning
test-learning: ## Train policies on a cluster until they have learned their task, alone and in two sessions at once.
	@$(pytest) -m learning $(PYTEST_ARGS) tests/e2e

.PHONY: kill-matrix
kill-matrix: ## Kill local runs in every phase and write the results to docs/reference/kill-matrix.md.
	@$(kills) $(pytest) $(PYTEST_ARGS) runner/tests/integration/test_kills.py \
	  runner/tests/integration/test_rollout_kills.py && cat docs/reference/kill-matrix.md

.PHONY: kill-matrix-cluster
kill-matrix-cluster: ## Do the same with pods on a cluster: evict, delete and kill them.
	@$(kills) $(pytest) $(PYTEST_ARGS) tests/e2e/test_kills.py tests/e2e/test_rollout_kills.py && cat docs/reference/kill-matrix.md

##@ Benchmarks

# Which installed release benchmark-serving measures: make benchmarks NAMESPACE=models RELEASE=chat
NAMESPACE ?=
RELEASE ?=
# More words for a benchmark: make benchmark-launch BENCHMARK_ARGS="--pairs 7"; "--help" lists them.
BENCHMARK_ARGS ?=
gpu_benchmark = $(python) benchmarks/gpu.py $(BENCHMARK_ARGS)

.PHONY: benchmarks
benchmarks: benchmark-launch benchmark-async benchmark-lab benchmark-engine benchmark-fleet ## Run all benchmarks that this machine can run (about 140 min, estimated; a GPU or a release adds to it).
	@$(gpu_benchmark) || [[ $$? == 77 ]] # there is no GPU, as it has said
	@if [[ -n "$(RELEASE)" ]]; then $(MAKE) benchmark-serving; \
	  else echo "benchmark-serving is left out: name a release: make benchmarks NAMESPACE=models RELEASE=chat"; fi

.PHONY: benchmark-launch
benchmark-launch: ## Compare `stoker run` with bare torchrun, on CPU (about 20 min, estimated).
	@$(python) benchmarks/launch_overhead.py $(BENCHMARK_ARGS)

.PHONY: benchmark-async
benchmark-async: ## Compare asynchronous GRPO with synchronous GRPO and with TRL's, on CPU (about 50 min, estimated).
	@$(venv) "$$venv/bin/python" benchmarks/async_grpo.py $(BENCHMARK_ARGS)

.PHONY: benchmark-lab
benchmark-lab: ## Compare training in a notebook with TRL alone, and rollouts by vLLM with transformers', on CPU (about 45 min, estimated).
	@$(python) benchmarks/lab.py $(BENCHMARK_ARGS)

.PHONY: benchmark-engine
benchmark-engine: ## Compare the engine that trains and serves with vLLM as it is, on CPU (about 5 min, estimated).
	@$(python) benchmarks/lab_engine.py $(BENCHMARK_ARGS)

.PHONY: benchmark-fleet
benchmark-fleet: ## Measure the one URL, reloads of weights, and their files against dd, on CPU (about 20 min, estimated).
	@$(venv) "$$venv/bin/python" benchmarks/fleet.py $(BENCHMARK_ARGS)

.PHONY: benchmark-gpu
benchmark-gpu: ## Compare a runtime's recipe with TRL's defaults on a GPU (about 15 min, estimated).
	@$(gpu_benchmark)

.PHONY: benchmark-serving
benchmark-serving: ## Compare Service and proxy with vLLM: NAMESPACE=models RELEASE=chat (about 5 min, estimated).
	@: $(or $(and $(NAMESPACE),$(RELEASE)),$(error name the release: make $@ NAMESPACE=models RELEASE=chat))
	@$(python) benchmarks/serving.py --namespace "$(NAMESPACE)" --release "$(RELEASE)" $(BENCHMARK_ARGS)

##@ Cluster

.PHONY: cluster-up
cluster-up: ## Start the cluster with JobSet and Kubeflow Trainer, or repair a broken one.
	@$(cluster) up

.PHONY: cluster-status
cluster-status: ## Print one line per component; fail unless all are healthy.
	@$(cluster) status

.PHONY: cluster-down
cluster-down: ## Stop the cluster and remove everything it left on this machine.
	@$(cluster) down

##@ Build

.PHONY: images
images: ## Build the CPU trainer image without Docker and print its path.
	@: $(python)
	@images/build trl --accelerator cpu

.PHONY: tools
tools: ## Build the pinned command-line tools (helm, kubeconform, …) and print their folder.
	@tools/build

.PHONY: dev-venv
dev-venv: ## Create the virtual environment of the tests and linters and print its folder.
	@$(python) tests/dev-venv

##@ Release

# The registry of a release; empty means the lock's. To try it out: REGISTRY=localhost:5000/trial PLAIN_HTTP=1.
REGISTRY ?=
PLAIN_HTTP ?=
# The cosign key that signs or verifies; empty means the identity of the release workflow.
KEY ?=
release = $(venv) "$$venv/bin/python" -m release
to = $(if $(REGISTRY),--registry "$(REGISTRY)") $(http)
http = $(if $(PLAIN_HTTP),--plain-http)
# A lock to use instead of images/images.lock.yaml, such as the one that OVERLAY=FILE wrote.
LOCK ?=
lock = $(if $(LOCK),--lock "$(LOCK)")
key = $(if $(KEY),--key "$(KEY)")
pushed = $(wildcard $(foreach a,images charts python,$(CACHE)/release/$a.txt))
lists = $(pushed) $(wildcard $(CACHE)/release/attestations.txt)

.PHONY: mirror-list
mirror-list: ## List what an air-gapped site must copy; PREFIX=registry.example.com/mirror prints the commands.
	@$(release) mirror-list $(if $(PREFIX),--prefix "$(PREFIX)") $(foreach a,$(ACCELERATOR),--accelerator $a) \
	  $(foreach c,$(CHARTS),--chart $c) $(if $(RESOLVE),--resolve) $(if $(SIGNATURES),--signatures) $(to) $(lock)

.PHONY: release-check
release-check: ## Check charts and their last published versions against the version policy.
	@$(release) check $(CHARTS)

.PHONY: release-images
release-images: ## Build and push images that have no digest yet (BUILDER=buildah: without Docker; IMAGES="trl-cpu").
	@$(release) images $(IMAGES) $(if $(BUILDER),--builder $(BUILDER)) $(to) --out "$(CACHE)/release/images.txt"

.PHONY: release-digests
release-digests: ## Write the digests of the last pushed images to the lock (OVERLAY=FILE: to a lock of only these).
	@$(release) digests "$(CACHE)/release/images.txt" $(if $(OVERLAY),--overlay "$(OVERLAY)")

.PHONY: release-charts
release-charts: ## Package and push charts whose images are published (CHARTS="training-runtimes", or its tag).
	@$(release) charts $(CHARTS) $(to) $(lock) --packages "$(CACHE)/release" --out "$(CACHE)/release/charts.txt"

.PHONY: release-attest
release-attest: ## Attach SBOM and provenance to the last pushed images, charts and Python package.
	@$(release) attest $(pushed) $(lock) $(http) --out "$(CACHE)/release/attestations.txt"

.PHONY: release-sign
release-sign: ## Sign the last pushed images and charts, and what is attached to them, with cosign.
	@$(release) sign $(lists) $(key) $(http)

.PHONY: release-verify
release-verify: ## Verify the signatures of the last pushed images and charts, and of what is attached to them.
	@$(release) verify $(lists) $(key) $(http)

.PHONY: release-python
release-python: ## Build the Python package, the same bytes at every build of a commit (REGISTRY=…: push it, too).
	@$(release) python --out "$(CACHE)/release/python" $(to) \
	  $(if $(REGISTRY),--list "$(CACHE)/release/python.txt")

.PHONY: release-notes
release-notes: ## Print the changelog entries for the charts' versions (CHARTS as above).
	@$(release) notes $(CHARTS)

# Where the documentation goes; each version has a folder in it.
SITE ?= $(CACHE)/site

.PHONY: site
site: ## Build the documentation site for the charts' versions (CHARTS as above), strictly, and print its folders.
	@$(release) site $(or $(CHARTS),stoker-board training-runtimes vllm-serving) --out "$(SITE)"

##@ Generated files

.PHONY: generate
generate: generate-images generate-charts generate-flags ## Regenerate all generated files except the locks.

.PHONY: generate-charts
generate-charts: ## Charts: value schemas, READMEs, golden renders, the demo's runtime.
	@$(venv) PYTHONPATH=tests:runner/src "$$venv/bin/python" -m charts.generate

.PHONY: generate-images
generate-images: ## Images: names and tags for docker buildx bake, and for the runner which packages each has.
	@bake="$$($(python) images/bake)" && printf '%s\n' "$$bake" > images/docker-bake.json
	@held="$$($(python) images/contents)" && printf '%s\n' "$$held" > runner/src/stoker/cluster/images.json

.PHONY: generate-flags
generate-flags: ## Runner: the flags of the pinned trainers, from their own parsers (builds their environments).
	@trainer="$$($(python) images/trl/venv)" && "$$trainer/bin/python" runner/scripts/generate_flags.py
	@trainer="$$($(python) images/torchtune/venv)" && "$$trainer/bin/python" runner/scripts/generate_torchtune.py

.PHONY: generate-vllm-flags
generate-vllm-flags: ## Chart vllm-serving: the flags of the pinned vLLM, from its own parser (builds its environment).
	@server="$$($(python) images/vllm/venv)" && flags="$$("$$server/bin/python" images/vllm/flags.py)" && \
	  printf '%s\n' "$$flags" > charts/vllm-serving/files/vllm-flags.json

# Output folders of finished runs: make pictures RUNS="first/output second/output"
RUNS ?=
.PHONY: pictures
pictures: ## Make the pictures of docs/images, of finished runs (RUNS="first/output second/output"), with Chromium.
	@: $(or $(RUNS),$(error name finished runs: make $@ RUNS="first/output second/output"))
	@export STOKER_PICTURES_OF="$(RUNS)"; $(pytest) $(PYTEST_ARGS) runner/tests/report/test_pictures.py \
	  runner/tests/board/test_browser.py -k picture

.PHONY: generate-notebooks
generate-notebooks: ## Examples: the notebooks of examples/lab, executed with a tiny model (builds the lab's environment).
	@lab="$$($(python) images/lab/venv --with-runner)" && made="$$(mktemp -d)" && trap 'rm -rf "$$made"' EXIT && \
	  "$$lab/bin/python" runner/tests/integration/tiny_inputs.py "$$made" >/dev/null && \
	  "$$lab/bin/python" -m runner.tests.lab.notebooks "$$made/model"

.PHONY: format
format: ## Format Python files with ruff and fix what it can.
	@$(venv) PYTHONPATH=tests "$$venv/bin/python" -m lint.format

.PHONY: lock-dev
lock-dev: ## Lock tests/requirements.in to the newest versions in tests/requirements.txt.
	@$(venv) "$$venv/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --custom-compile-command "make lock-dev" \
	  --output-file tests/requirements.txt tests/requirements.in >/dev/null

##@ Cleaning up

.PHONY: clean
clean: ## Remove the caches that linters and Python left in the checkout.
	@rm -rf .cache .hypothesis
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

.PHONY: clean-cache
clean-cache: clean ## Stop the cluster and remove everything built; the next run starts cold.
	@$(cluster) down || [ $$? -eq 77 ] # a user who cannot run a cluster here has none
	@rm -rf "$(CACHE)"
