# README's two commands are `make demo` and `make test`; every target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_FOR_DOCS := $(VENV)/.ready-for-docs
SITE := .cache/site
unexport PYTHONDONTWRITEBYTECODE  # the tests start Python some hundred times: compiled modules start faster

# Two workers of pytest-xdist for each processor, because many tests wait for others, but at most six: one takes up to
# 2 GiB with RocketMQ. Each takes whole files, in the order of tests/conftest.py: the tests of a file may build on each
# other. One worker takes all tests with Spark: its JVM takes up to 4 GiB.
PYTEST := $(BIN)/python -m pytest --durations=25
TESTS ?=  # of the unit tests only these files or folders
WORKERS ?= $(shell n=$$(($$(nproc) * 2)); echo $$((n < 6 ? n : 6)))
PARALLEL := --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder
# Unit tests wait for nobody, and none has Spark.
QUICKLY := --numprocesses=$(shell nproc) --dist=loadfile --no-loadscope-reorder -o tmp_path_retention_policy=failed
# Two targets beside each other. What a target of checks says comes in one piece, when it ends.
BESIDE := $(MAKE) --no-print-directory --jobs=2
IN_ONE_PIECE := $(MAKE) --no-print-directory --output-sync=target

# How much is tried. `make test` gives these to the tests; `make proofs` goes on for so many seconds.
FEW_EXAMPLES := RMQHA_EXAMPLES=quick
SIZES := $(FEW_EXAMPLES) RMQHA_SIM_SEEDS=0..99 RMQHA_FAILOVER_SEEDS=0..59 RMQHA_CLUSTER_SEEDS=0..99 RMQHA_STORE_CASES=300
CLUSTER_SEEDS ?= 100..
FAILOVER_SEEDS ?= 60..499
SIM_SECONDS ?= 300
SIM_SEEDS ?= 100..
FUZZ_SECONDS ?= 120
HISTORIES ?= 0..199
STORES_SECONDS ?= 300
CHAOS_RESULTS ?= benchmarks/results/chaos.jsonl
FUZZ_SEED ?=
SEED := $(addprefix --seed ,$(FUZZ_SEED))
ROCKETMQ_VERSIONS ?= 4.9.7
PROOFS := stories long-proof sim-proof fuzz-proof plants-proof java-proof peer-proof trial

# All of tests/interop but what is the same with each release that is started: these name their releases, or start none.
NAMES_ITS_RELEASES := rocketmq5.py mqadmin_versions.py java_settings.py go_client.py node_client.py cpp_client.py
JAVA_PROOF := tests/interop $(addprefix --ignore=tests/interop/test_,$(NAMES_ITS_RELEASES))
# A Java master and our slave, our master and a Java slave, failover, clients: the rest of these files takes minutes.
OUR_SLAVE := java_master.py::test_a_fresh_slave_gets_all_history_while_messages_keep_coming
JAVA_SLAVE := java_slave.py::test_a_java_slave_follows_a_growing_log_from_segment_to_segment
FAILOVER := failover.py::test_consumers_go_on_at_our_slave_when_our_sync_master_is_killed
TAKES_OVER := promotion.py::test_our_slave_takes_over_from_a_java_master_which_comes_back_as_a_java_slave
JAVA_SMOKE := $(addprefix tests/interop/test_,$(OUR_SLAVE) $(JAVA_SLAVE) $(FAILOVER) $(TAKES_OVER) java_clients.py)

.PHONY: $(shell grep -ohE '^[a-z-]+:' $(firstword $(MAKEFILE_LIST)) | tr -d :)

help:
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(READY)  ## .venv with rmqha, twistd and all that the other targets use

$(READY): pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev,fuzz]' || $(BIN)/pip install --quiet --editable '.[dev]'
	touch $(READY)

kernel: $(READY)  ## builds the compiled kernel in place, after a change of rmqha/wire/_kernel.pyx; fails if it cannot
	RMQHA_EXTENSION=yes $(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .

# Python's own memory comes from malloc, where the sanitizer sees it. A reference that nobody frees is Python's at its end.
SANITIZED := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
UNDER_ASAN = env LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc RMQHA_PURE_PYTHON=1

fuzz-kernel: $(READY)  ## the kernel with gcc's sanitizers against plain Python; KERNEL='--bytes 1e9 --seed 1'
	RMQHA_EXTENSION=yes CFLAGS="$(SANITIZED)" LDFLAGS="$(SANITIZED)" $(BIN)/python setup.py --quiet \
		build_ext --build-lib .cache/sanitized --build-temp .cache/sanitized/temp
	$(UNDER_ASAN) $(BIN)/python -m tests.fuzz.kernel --kernel .cache/sanitized/rmqha/wire/_kernel.*.so $(KERNEL)

$(READY_FOR_DOCS): $(READY)
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $(READY_FOR_DOCS)

demo: $(READY)  ## masters and slaves as twistd processes, killed; the proof that copies are identical; Spark SQL over them
	$(BIN)/python examples/demo.py

quick: $(READY)  ## before each commit: checks, the unit tests that the change can touch, 100 seeds of the simulator
	@$(BESIDE) touched quick-checks
	@echo "all quick checks passed"

quick-checks:
	@$(IN_ONE_PIECE) lint imports types quick-sim

quick-sim: $(READY)
	$(BIN)/python -m rmqha.testing.sim --seeds 0..99

touched: $(READY)  ## pytest: the unit tests that what differs from main can touch; TOUCHED=tests runs them all
	@chosen=$$($(if $(TOUCHED),echo $(TOUCHED),$(BIN)/python -m tests.rules.touched)) && \
		$(FEW_EXAMPLES) $(PYTEST) $(QUICKLY) -m unit -q $$chosen

test: $(READY_FOR_DOCS) lint imports  ## all checks, and every test but the stories and the long forms
	@$(BESIDE) unit checks
	@echo "all checks passed"

checks:
	@$(IN_ONE_PIECE) types docs trial-smoke wheel

proofs: $(PROOFS)  ## what takes long: stories, long forms of tests, more seeds and cases, more versions of RocketMQ, trial with coverage
	@echo "all proofs passed"

proof-names:  ## the parts of `make proofs`, which CI runs one after another
	@echo $(PROOFS)

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy --strict with mypy-zope
	$(BIN)/mypy rmqha twisted/plugins tests benchmarks examples docs/make ops packaging/make

imports: $(READY)  ## import-linter: who may import whom
	$(BIN)/lint-imports

unit: $(READY)  ## pytest: everything but the stories and the long forms, the real Java broker and Spark too
	$(SIZES) $(PYTEST) $(PARALLEL) -m "not story and not proof" $(TESTS)

# What the kernel compiles, and what stands on it.
TWINS := tests/wire tests/store tests/ha tests/remoting tests/broker

twins: $(READY)  ## pytest: the unit tests of what the compiled kernel has a part in, on plain Python
	RMQHA_PURE_PYTHON=1 $(FEW_EXAMPLES) $(PYTEST) $(QUICKLY) -m unit -q $(TWINS)

stories: $(READY)  ## pytest: tests that take long, mostly with several brokers, clients or Spark
	$(SIZES) $(PYTEST) $(PARALLEL) -m "story and not proof" $$(grep -rl --include='test_*.py' 'mark[.]story' tests)

long-proof: $(READY)  ## pytest: the long forms of tests that `make unit` runs in short, and all examples of hypothesis
	$(PYTEST) $(PARALLEL) -m "proof or hypothesis"

trial-smoke: $(READY)  ## trial loads all unit tests, and runs those of three packages
	$(BIN)/python -m twisted.trial --temp-directory=.cache/trial --dry-run --reporter=summary tests
	$(FEW_EXAMPLES) $(BIN)/python -m twisted.trial --temp-directory=.cache/trial --reporter=summary tests.client tests.namesrv tests.ops

trial: $(READY)  ## all unit tests under trial, with branch coverage
	$(FEW_EXAMPLES) $(BIN)/coverage run -m twisted.trial --temp-directory=.cache/trial --reporter=summary tests
	$(BIN)/coverage report

sim-proof: $(READY)  ## the simulator for SIM_SECONDS, with SIM_SEEDS, as long with automatic failover, and with FAILOVER_SEEDS
	$(BIN)/python -m rmqha.testing.sim --story failover --seeds $(FAILOVER_SEEDS) --jobs 2
	timeout --preserve-status --signal=INT $(SIM_SECONDS) $(BIN)/python -m rmqha.testing.sim --seeds $(SIM_SEEDS) --jobs 2
	timeout --preserve-status --signal=INT $(SIM_SECONDS) $(BIN)/python -m rmqha.testing.sim --story cluster \
		--seeds $(CLUSTER_SEEDS) --jobs 2

plants-proof: $(READY)  ## bugs planted into the product, searched for by the simulator from seed 0
	$(BIN)/python -m tests.testing.planted

mutants: $(READY)  ## bugs planted into a copy of the tree, which tests must find; goes on after an interrupt; MUTANTS='--table'
	$(BIN)/python -m tests.proofs.mutants $(MUTANTS)

histories: $(READY)  ## what clients of simulated clusters asked and were answered, checked by Porcupine; needs Go
	rm -rf .cache/histories
	$(BIN)/python -m rmqha.testing.sim --story cluster --seeds $(HISTORIES) --histories .cache/histories
	$(BIN)/python -m tests.proofs.foreign .cache/histories

fuzz-proof: $(READY)  ## the fuzzers for FUZZ_SECONDS and STORES_SECONDS, with new cases or from FUZZ_SEED on
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(SEED)
	$(BIN)/python -m tests.fuzz.stores --seconds $(STORES_SECONDS) --jobs 2 $(SEED) || test $$? = 3  # 3: the time is over

java-smoke: $(READY)  ## a few tests with each further version of ROCKETMQ_VERSIONS: slaves of both sides, failover, clients
	for version in $(ROCKETMQ_VERSIONS); do RMQHA_ROCKETMQ=$$version $(PYTEST) $(PARALLEL) -q -m java $(JAVA_SMOKE) || exit 1; done

java-proof: $(READY)  ## tests/interop with each further version of ROCKETMQ_VERSIONS: brokers, name servers, clients, mqadmin
	for version in $(ROCKETMQ_VERSIONS); do RMQHA_ROCKETMQ=$$version $(PYTEST) $(PARALLEL) -q $(JAVA_PROOF) || exit 1; done

peer-proof: $(READY)  ## RocketMQ's own integration tests: two masters, two SYNC pairs, TLS; PEER='--cluster java' is the control
	$(BIN)/python -m tests.peer $(PEER)

clones: $(READY)  ## make test in fresh clones beside each other, in portions, with a file of results; CLONES='--clones 5 --seconds 1800'
	$(BIN)/python -m tests.clones $(CLONES)

soak: $(READY)  ## the simulator, seed after seed until Ctrl-C; SOAK='--seeds 0..99999 --jobs 2' and the like
	$(BIN)/python -m rmqha.testing.sim $(or $(SOAK),--seeds 0.. --jobs 2)

chaos: $(READY)  ## faults for a whole failover cluster under Java clients, 50 of each; CHAOS='--rounds 5 --faults kill-leader'
	$(BIN)/python -m tests.chaos --record $(CHAOS_RESULTS) $(or $(CHAOS),--rounds 50); status=$$?; \
		$(BIN)/python -m tests.chaos --table $(CHAOS_RESULTS) --page docs/benchmarks.md && exit $$status

fuzz: $(READY)  ## until Ctrl-C, led by coverage where atheris is; FUZZ='--seconds 60 --seed 1' and the like
	$(BIN)/python -m tests.fuzz $(or $(FUZZ),--guided)

fuzz-broker: $(READY)  ## a whole broker with 200 connections, plain and TLS, some of which break off; FUZZ='--seeds 0..99'
	$(BIN)/python -m tests.fuzz.broker $(FUZZ)

fuzz-stores: $(READY)  ## damaged stores, until Ctrl-C; FUZZ='--cases 20000 --seed 1' and the like
	$(BIN)/python -m tests.fuzz.stores $(FUZZ)

docs: $(READY_FOR_DOCS)  ## the documentation as a site in .cache/site, without a network; each warning is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs --doctree-dir .cache/doctrees . $(SITE)
	@echo "open $(SITE)/index.html"

pages: $(READY)  ## writes the pages again that are made from the code, and the dashboard of ops/
	$(BIN)/python docs/make

wheel: $(READY)  ## builds the wheel, installs it elsewhere, and asks twistd for rmqha from there
	$(BIN)/python tests/check_wheel.py

package: $(READY)  ## dist/: sdist, wheel, man pages and completions of bash, zsh and fish
	RMQHA_EXTENSION=no $(BIN)/python -m build --outdir dist
	$(BIN)/python packaging/make/pages.py dist

wheels: $(READY)  ## dist/: wheels with the compiled kernel, by cibuildwheel where Docker or podman runs; else one for this Python
	packaging/make/wheels.sh

deb: $(READY)  ## dist/rmqha_VERSION_ARCH.deb, by dh-virtualenv, on Debian
	packaging/make/deb.sh

deb-proof: $(READY)  ## installs dist/*.deb in a bookworm root; its node copies a Java master; as root
	packaging/make/deb_proof.sh

systemd-proof:  ## boots a bookworm root with systemd and dist/*.deb: it starts, reloads and watches nodes; as root
	packaging/make/systemd_proof.sh

image: $(READY)  ## dist/rmqha-image.tar, an OCI image, without a registry; as root
	packaging/make/image.sh

image-proof: $(READY)  ## runs dist/rmqha-image.tar in namespaces; it copies a Java master; as root
	packaging/make/image_proof.sh

bench-catchup: $(READY)  ## catching up: ours against the Java 4.9.3 pair, one run
	$(BIN)/python -m benchmarks.catchup

bench-scan: $(READY)  ## proving records: by the kernel, many at once in plain Python, one by one
	$(BIN)/python -m benchmarks.scan

bench-sends: $(READY)  ## taking the sends of a read: by the kernel, in plain Python
	$(BIN)/python -m benchmarks.sends

bench-append: $(READY)  ## appending: pwrite against a mapping on reserved blocks
	$(BIN)/python -m benchmarks.append

bench-store: $(READY)  ## puts a second: ours against the Java store, one run
	$(BIN)/python -m benchmarks.store

bench-sync: $(READY)  ## puts that wait for slaves: latency, rate, and what a further slave costs, one run
	$(BIN)/python -m benchmarks.sync

bench-broker: $(READY)  ## the official Java producer: our master and slave against the Java 4.9.3 pair, one run; BROKER='--rounds 5 --json FILE'
	$(BIN)/python -m benchmarks.broker $(BROKER)

bench-consumers: $(READY)  ## official Java consumers at the head and far behind: our master against Java 4.9.3, one run; CONSUMERS='--gib 1 --json FILE'
	$(BIN)/python -m benchmarks.consumers $(CONSUMERS)

bench-attacks: $(READY)  ## what honest clients notice while strangers attack a master and a name server
	$(BIN)/python -m benchmarks.attacks

bench-spark: $(READY)  ## the log as data: our source and jobs against binaryFiles, a pyarrow script and Spark's writer, and over the network; SPARK='--only network'
	$(BIN)/python -m benchmarks.spark $(SPARK)

bench-start: $(READY)  ## starting and stopping: many queues, a log without queues, signals meanwhile; START='--queues 1000 --log-mib 100'
	$(BIN)/python -m benchmarks.start $(START)

bench-metrics: $(READY)  ## what the counting for metrics costs a put, as a ratio, one run
	$(BIN)/python -m benchmarks.metrics

bench-acl: $(READY)  ## what access control costs a put, as a ratio, and what bad signatures cost honest clients, one run
	$(BIN)/python -m benchmarks.acl

bench-timers: $(READY)  ## what timer messages of RocketMQ 5 cost: reading them at a start, memory, delivery; TIMERS='--messages 1000000'
	$(BIN)/python -m benchmarks.timers $(TIMERS)

bench-failover: $(READY)  ## a new leader, puts with failover, idle nodes; promotion, rewinding, copies against cp; CLUSTER='--runs 5' PAGES='--runs 2' FAILOVER='--gib 2'
	$(BIN)/python -m benchmarks.cluster $(CLUSTER)
	$(BIN)/python -m benchmarks.pages $(PAGES)
	$(BIN)/python -m benchmarks.failover $(FAILOVER)

release: $(READY)  ## checks, sdist, wheel, man pages, deb, image, checksums, signature; what a person must still do; RELEASE=--dry-run
	$(BIN)/python packaging/make/release.py $(RELEASE)

news: $(READY)  ## what the next release's news would say
	$(BIN)/towncrier build --draft --version next

clean:  ## everything that make made
	rm -rf $(VENV) .cache .demo .bench build dist *.egg-info
