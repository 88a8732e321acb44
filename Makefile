# Every target sets up .venv on first use; only Python 3.11 and make are required.
# What a run needs is in envs/requirements.lock; `make test` and `make check` add envs/dev.lock, `make docs` envs/docs.lock.
PYTHON ?= python3
CORES ?= $(shell nproc 2> /dev/null || sysctl -n hw.ncpu)
BIN = .venv/bin
CONFIG ?= config/config.yaml
export PATH := $(CURDIR)/.venv/bin:$(PATH)
PIP = $(BIN)/pip install --quiet --disable-pip-version-check
UV = uv==0.13.8
export MLFLOW_DISABLE_TELEMETRY = true
unexport PYTHONDONTWRITEBYTECODE # many containers set it: every job would compile its imports again

.PHONY: run test test-faults test-docs test-gpu test-slurm test-network network audit check setup dev bench mlflow docs clean schema lock

run: setup  ## run the demo: data, training, MLflow, report
	$(BIN)/fdamed run --cores $(CORES) --config $(CONFIG)
	@echo "MLflow: make mlflow"

test: dev  ## run all tests except the slow ones; COVERAGE=1 measures the branch coverage of fdamed/
	$(BIN)/pytest -n $(CORES) --dist loadfile $(if $(COVERAGE),--cov --cov-report=term:skip-covered)

test-faults: dev  ## run the fault tests: kills, full disks, decompression bombs, damaged files (minutes; root for small disks)
	$(BIN)/pytest -m faults -n $(CORES) --dist loadfile

test-docs: dev  ## run every command of the documentation in a small copy of the project (minutes)
	$(BIN)/pytest -m docs tests/integration/test_docs_run.py

test-gpu: dev  ## run every method on a pretended GPU: the CPU's bits, no mixed devices, counted synchronizations
	$(BIN)/pytest -m gpu tests/gpu

test-slurm: dev  ## run a study on a real SLURM on loopback: faults, retries, restarts, an outage (root on Debian; minutes)
	.ci/slurm all

test-network: dev network  ## run a study across hospitals over NVIDIA FLARE on loopback: same bits, faults (minutes); SHORT=1: one kill
	$(BIN)/pytest -m network -n 0 $(if $(SHORT),-k short)

network: setup  ## install what a study over a network needs
	$(PIP) --no-deps -r envs/network.lock

audit: dev  ## check pinned dependencies for known vulnerabilities (exit 0: none, 1: found, 3: advisory service unreachable)
	.ci/audit

check: dev  ## check style, types, import layers and the workflow
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

bench: dev  ## run the benchmarks, one JSON line each
	$(BIN)/python -m benchmarks.gp
	$(BIN)/python -m benchmarks.round
	$(BIN)/python -m benchmarks.local_training
	$(BIN)/python -m benchmarks.input
	$(BIN)/python -m benchmarks.healthcare
	$(BIN)/python -m benchmarks.methods
	$(BIN)/python -m benchmarks.fashion
	$(BIN)/python -m benchmarks.ingest
	$(BIN)/python -m benchmarks.phantom
	$(BIN)/python -m benchmarks.bootstrap
	$(BIN)/python -m benchmarks.dag
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.demo

mlflow: setup  ## serve the MLflow runs on http://127.0.0.1:5000
	$(BIN)/fdamed mlflow --config $(CONFIG)

docs: setup  ## build the documentation as pages that open offline: site/index.html
	$(PIP) --no-deps -r envs/docs.lock
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

schema: setup  ## regenerate config/schema.json and the method catalog
	$(BIN)/fdamed schema

setup: .venv/made

dev: .venv/made-dev

# uv installs wheels quickly, but knows neither pip's settings nor torch's libraries for a GPU: pip adds what is missing
# (all, where uv fails). Compiling every module of every package is half of its work: here only what a run imports.
.venv/made: envs/requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	{ $(PIP) --no-compile $(UV) && grep -vE '^(torch|connection_pool)=' envs/requirements.lock | UV_HTTP_TIMEOUT=20 \
		$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --only-binary :all: -r -; } 2> /dev/null || true
	$(PIP) --no-compile -r envs/requirements.lock
	$(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/python -c "import mlflow.tracking, snakemake.cli; from fdamed.cli.commands import fit_classical, phantom, report, track"
	touch .venv/made

.venv/made-dev: .venv/made envs/dev.lock
	$(PIP) --no-deps -r envs/dev.lock
	touch .venv/made-dev

clean:  ## delete results, phantoms and caches; keep .venv
	rm -rf results data/phantoms .snakemake .pytest_cache .mypy_cache .ruff_cache
