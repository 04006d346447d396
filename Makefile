# Thin on purpose: each target calls one thing. `make check` and `make test` are what CI runs (.ci/run).

BIN := .venv/bin

# Keep compiled code, also where a container's setting says not to: else each of many commands compiles all of it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup audit demo demo-join demo-kafka test test-all chaos properties bench bench-peers bench-long check format tree docs screenshots ui

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## build the environment in .venv; seconds when it is there already
	@tools/setup.sh

demo: setup ## run the demo pipeline and print what came out
	@$(BIN)/python -m tidemark.pipelines.demos.flights

demo-join: setup ## join a year of flights with the weather in which they left, and compare
	@$(BIN)/python -m tidemark.pipelines.demos.weather

demo-kafka: setup ## play the demo through a broker of Kafka on this machine, and compare
	@$(BIN)/python -m examples.kafka.demo

# Files stay whole, as their tests share what they look at; the longest come first, so that both processes end together.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: setup ## run the short tests, of every layer, in minutes; SAMPLE=7 adds as many of the long ones
	@$(PYTEST) $(if $(SAMPLE),--sample $(SAMPLE))

test-all: setup ## run all tests, also the long ones, and two hundred kills: two hours
	@$(PYTEST) --all
	@$(MAKE) chaos

chaos: setup ## kill pipelines two hundred times, or KILLS=…, by SEED=…, and compare them with undisturbed ones: an hour
	@$(BIN)/python -m tests.chaos --kills $(or $(KILLS),200) $(if $(SEED),--seed $(SEED))

properties: setup ## try 2,000 fresh random logs in each mode of each property, or LOGS=…; hours
	@$(BIN)/python -m pytest -n 2 --dist worksteal tests/properties --all --logs $(or $(LOGS),2000)

bench: setup ## measure against peers in half an hour: one table, and benchmarks/results.json
	@$(BIN)/python -m benchmarks

bench-peers: setup ## install the peers of `make bench` that have environments of their own: DuckDB, Polars, Flink
	@benchmarks/peers/setup.sh

bench-long: setup ## measure what takes hours: lengths and cores, growth, questions, a hundred batches, backfills, upkeep
	@$(BIN)/python -m benchmarks.curve
	@$(BIN)/python -m benchmarks.growth
	@$(BIN)/python -m benchmarks.windows --in-order
	@$(BIN)/python -m benchmarks.questions
	@$(BIN)/python -m benchmarks.micro_batches --held 10000000
	@$(BIN)/python -m benchmarks.queued --cold
	@$(BIN)/python -m benchmarks.small_runs
	@$(BIN)/python -m benchmarks.batches
	@$(BIN)/python -m benchmarks.joins
	@$(BIN)/python -m benchmarks.backfills
	@$(BIN)/python -m benchmarks.upkeep
	@$(BIN)/python -m benchmarks.upkeep --long --batches 1000

check: setup ## check format, style, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

audit: setup ## write the bill of materials, sbom.json, and check the licences of what is installed
	@tools/audit.sh

tree: setup ## show the four storeys as a tree: rooms and files, their lines, what each is
	@$(BIN)/python -m tools.tree

docs: setup ## write the generated part of the documentation anew, from the models of a spec
	@$(BIN)/python -m tools.spec_reference

screenshots: setup ## make the pictures of the documentation anew, from the demo in a browser
	@$(BIN)/python -m tests.browser.screenshots

ui: setup ## open Dagster at http://localhost:3000; Ctrl-C ends it
	@$(BIN)/python -m tidemark.pipelines.demos.ui
