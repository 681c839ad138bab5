# README's two commands are `make demo` and `make test`; every target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help install demo test lint types imports unit trial fuzz fuzz-stores soak wheel bench-catchup bench-scan bench-append bench-store bench-sync bench-broker bench-attacks bench-spark bench-start news clean

help:
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(READY)  ## .venv with rmqha, twistd and all that the other targets use

$(READY): pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev,fuzz]' || $(BIN)/pip install --quiet --editable '.[dev]'
	touch $(READY)

demo: $(READY)  ## masters and slaves as twistd processes, killed; the proof that copies are identical; Spark SQL over them
	$(BIN)/python examples/demo.py

test: lint types imports unit trial wheel  ## all checks and tests
	@echo "all checks passed"

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy --strict with mypy-zope
	$(BIN)/mypy rmqha twisted/plugins tests benchmarks examples docs/make

imports: $(READY)  ## import-linter: who may import whom
	$(BIN)/lint-imports

unit: $(READY)  ## pytest: everything, the real Java broker too, with branch coverage
	$(BIN)/python -m pytest --cov --cov-report=term

trial: $(READY)  ## the same unit tests under trial
	$(BIN)/python -m twisted.trial --temp-directory=.cache/trial tests

soak: $(READY)  ## the simulator, seed after seed until Ctrl-C; SOAK='--seeds 0..99999 --jobs 2' and the like
	$(BIN)/python -m rmqha.testing.sim $(or $(SOAK),--seeds 0.. --jobs 2)

fuzz: $(READY)  ## until Ctrl-C, led by coverage where atheris is; FUZZ='--seconds 60 --seed 1' and the like
	$(BIN)/python -m tests.fuzz $(or $(FUZZ),--guided)

fuzz-stores: $(READY)  ## damaged stores, until Ctrl-C; FUZZ='--cases 20000 --seed 1' and the like
	$(BIN)/python -m tests.fuzz.stores $(FUZZ)

wheel: $(READY)  ## builds the wheel, installs it elsewhere, and asks twistd for rmqha from there
	$(BIN)/python tests/check_wheel.py

bench-catchup: $(READY)  ## catching up: ours against the Java 4.9.3 pair, one run
	$(BIN)/python -m benchmarks.catchup

bench-scan: $(READY)  ## proving records: many at once against one by one
	$(BIN)/python -m benchmarks.scan

bench-append: $(READY)  ## appending: pwrite against a mapping on reserved blocks
	$(BIN)/python -m benchmarks.append

bench-store: $(READY)  ## puts a second: ours against the Java store, one run
	$(BIN)/python -m benchmarks.store

bench-sync: $(READY)  ## puts that wait for slaves: latency, rate, and what a further slave costs, one run
	$(BIN)/python -m benchmarks.sync

bench-broker: $(READY)  ## the official Java producer: our master and slave against the Java 4.9.3 pair, one run
	$(BIN)/python -m benchmarks.broker

bench-attacks: $(READY)  ## what honest clients notice while strangers attack a master and a name server
	$(BIN)/python -m benchmarks.attacks

bench-spark: $(READY)  ## the log as data: our source and jobs against binaryFiles, a pyarrow script and Spark's writer, one run
	$(BIN)/python -m benchmarks.spark

bench-start: $(READY)  ## starting and stopping: many queues, a log without queues, signals meanwhile; START='--queues 1000 --log-mib 100'
	$(BIN)/python -m benchmarks.start $(START)

news: $(READY)  ## what the next release's news would say
	$(BIN)/towncrier build --draft --version next

clean:  ## everything that make made
	rm -rf $(VENV) .cache .demo .bench build dist *.egg-info
