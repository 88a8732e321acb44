# Every target makes .venv on first use; nothing else needs to be installed but Python 3.11 and make.
PYTHON ?= python3
CORES ?= $(shell nproc)
BIN = .venv/bin
CONFIG ?= config/config.yaml
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export MLFLOW_DISABLE_TELEMETRY = true

.PHONY: run test test-faults test-docs test-slurm audit check setup bench mlflow docs clean schema lock

run: setup  ## the whole demo: data, training, MLflow, report; then the data of the other two layouts
	$(BIN)/snakemake --cores $(CORES) --configfile $(CONFIG)
	$(BIN)/snakemake --cores $(CORES) --configfile config/mimic_phantom.yaml -- data
	$(BIN)/snakemake --cores $(CORES) --configfile config/midrc_phantom.yaml -- data
	@$(BIN)/python -c "from fdamed.config.loader import load; c = load('$(CONFIG)'); print(f'\nreport:  {c.results}/{c.study}/report/index.html\nMLflow:  make mlflow')"

test: setup  ## all tests but the slow ones; COVERAGE=1 measures the branch coverage of fdamed/
	$(BIN)/pytest -n $(CORES) --dist loadfile $(if $(COVERAGE),--cov --cov-report=term:skip-covered)

test-faults: setup  ## kills, full disks, bombs, broken files, two at once (minutes; root for the small disks)
	$(BIN)/pytest -m faults -n $(CORES) --dist loadfile

test-docs: setup  ## every command of the documentation, run in a small copy of the project on stand-ins (minutes)
	$(BIN)/pytest -m docs tests/integration/test_docs_run.py

test-slurm: setup  ## a real SLURM on loopback: faults, retries, restarts, an outage (root on Debian; minutes)
	.ci/slurm all

audit: setup  ## known holes in the pinned versions: exit 0 none, 1 some, 3 no service to ask (the floors are checked)
	.ci/audit

check: setup  ## style, types, layers, workflow
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

bench: setup  ## one JSON line a benchmark
	$(BIN)/python -m benchmarks.gp
	$(BIN)/python -m benchmarks.round
	$(BIN)/python -m benchmarks.local
	$(BIN)/python -m benchmarks.healthcare
	$(BIN)/python -m benchmarks.methods
	$(BIN)/python -m benchmarks.fashion
	$(BIN)/python -m benchmarks.ingest
	$(BIN)/python -m benchmarks.phantom
	$(BIN)/python -m benchmarks.bootstrap
	$(BIN)/python -m benchmarks.dag
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.report

mlflow: setup  ## serve the runs on http://127.0.0.1:5000
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false $(BIN)/mlflow server --host 127.0.0.1 --port 5000 --workers 1 \
		--backend-store-uri sqlite:///results/mlflow/mlflow.db --artifacts-destination results/mlflow/artifacts

docs: setup  ## the documentation as pages that open offline: site/index.html
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r envs/docs.lock
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

schema: setup  ## regenerate config/schema.json and the catalog of methods
	$(BIN)/fdamed schema

setup: .venv/made

.venv/made: envs/requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r envs/requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch .venv/made

clean:  ## remove results, phantoms and caches; .venv stays
	rm -rf results data/phantoms .snakemake .pytest_cache .mypy_cache .ruff_cache
