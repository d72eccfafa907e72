# The commands of this project. They need Python 3.11 or later, make and a network.

# The first Python that has all packages as wheels, and can make environments.
PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$each" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && \
	echo "$$each" && break; done)
VENV := .venv
BIN := $(VENV)/bin
NEWEST := build/newest
HBASE := build/hbase
OBSERVER := build/observer
PYTEST_ARGS ?= -n 3 --dist loadfile
# Two HBases beside each other: most tests wait for one half of their time.
HBASE_ARGS ?= -n 2 --dist loadfile
SEED ?= 1
COUNT ?= 300

.PHONY: run test test-all prove prove-long mutants mutants-random blocking lint types imports check demo clean \
	prove-cluster prove-cluster-long cluster \
	bench-setup bench bench-quick bench-scale bench-spark hbase test-hbase test-hbase-one test-spark \
	test-newest test-release test-browser prove-console screenshots observer
.NOTPARALLEL:

# Serve on http://127.0.0.1:7411, with all data in data/ and snapshots/.
run: $(VENV)/.installed
	exec $(BIN)/python server.py --config conf/standalone.toml

# Runs a real HBase on this machine: files in data/hbase, gateways on the ports that conf/distributed.toml
# names. Ctrl-D stops it. Needs JDK 17; the first run also needs Maven.
hbase: $(HBASE)/.installed
	exec java -XX:SharedArchiveFile=$(CURDIR)/$(HBASE)/classes.jsa @coprocessor/runtime/jvm.options \
		-cp '$(CURDIR)/$(HBASE)/lib/*' \
		tuff.runtime.LocalHBase all data/hbase 9181 9182 9183 9090 9091

# Runs a real HBase and three servers of a cluster on this machine, with all data in a temporary
# directory. Ctrl-D stops it. Needs the same as `make hbase`.
cluster: $(VENV)/.installed-hbase $(HBASE)/.installed
	exec $(BIN)/python -m tests.cluster.local_cluster

# The tests that must pass before a commit; two to three minutes on two cores.
test: $(VENV)/.installed-dev
	$(BIN)/pytest -q -m "not slow" --durations=10 $(PYTEST_ARGS) $(MORE)

# Builds and tests the jar that region servers load, build/observer/tuff-observer-1.jar.
observer: $(OBSERVER)/.installed

# All tests on a real HBase: in one JVM, in five JVMs, and the HTTP tests of the server.
test-hbase: test-hbase-one
	$(BIN)/pytest -q -m cluster tests/hbase
	$(BIN)/python -m tests.hbase.serving tests/http -q -m "not slow" $(PYTEST_ARGS)

# Only the tests that need one JVM.
test-hbase-one: $(VENV)/.installed-dev $(HBASE)/.installed $(OBSERVER)/.installed
	$(BIN)/pytest -q -m "hbase and not cluster" tests/hbase $(HBASE_ARGS) $(MORE)

# The slow Spark tests: Spark Connect, declarative pipelines, pauses between stages.
test-spark: $(VENV)/.installed-dev
	$(BIN)/pytest -q -m slow tests/spark $(MORE)

# The console in Debian's Chromium, which has to be installed; a minute. Pages wait for one half of their time.
test-browser: $(VENV)/.installed-dev
	$(BIN)/pytest -q -m browser tests/console -n 2 $(MORE)

# The console with 10,000 topics and a million messages, in Chromium; a minute, on an idle machine.
prove-console: $(VENV)/.installed-dev
	$(BIN)/python -m tests.console.scale

# Makes the screenshots of docs/console.md again.
screenshots: $(VENV)/.installed-dev
	$(BIN)/python -m tests.console.screenshots

# The tests of the client and of HTTP on the newest Python of this machine, in an environment of its own.
test-newest: $(VENV)/.installed-dev $(NEWEST)/.installed
	$(NEWEST)/bin/python -m pytest -q -m 'not slow and not tools' tests/client tests/http tests/leveldb $(PYTEST_ARGS) $(MORE)

# Builds the sdist and the wheel and installs them without the checkout, with each extra; two to three minutes.
test-release: $(VENV)/.installed-dev
	$(BIN)/pytest -q -m slow tests/release

# All tests, including those marked slow.
test-all: $(VENV)/.installed-dev
	$(BIN)/pytest -q $(PYTEST_ARGS)

# Every attack on the promises: up to twenty-five minutes on two cores. prove-long takes hours.
prove: $(VENV)/.installed-prove
	$(BIN)/python -m tests.prove

prove-long: $(VENV)/.installed-prove
	$(BIN)/python -m tests.prove --long

# Faults of a cluster of three servers, for two minutes; prove-cluster-long takes an hour. They are
# not part of prove, since they need the real HBase that Maven gets, network namespaces (see
# docs/reliability.md), and an idle machine: they also judge how long a topic takes no writes.
prove-cluster: $(VENV)/.installed-dev $(HBASE)/.installed
	$(BIN)/python -m tests.faults.cluster --pairs --minutes 2 --judge-outages
	$(BIN)/python -m tests.faults.cluster --pairs --minutes 2 --metadata hbase

prove-cluster-long: $(VENV)/.installed-dev $(HBASE)/.installed
	$(BIN)/python -m tests.faults.cluster --pairs --minutes 40 --judge-outages
	$(BIN)/python -m tests.faults.cluster --pairs --minutes 20 --metadata hbase

# Generates most of tuff/blocking from tuff/aio (decision 0009).
blocking: $(VENV)/.installed-dev
	$(BIN)/python -m tests.client.generate_blocking

# Plants known bugs in copies of the tree; the test that is named for each bug must fail.
mutants: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutants

# Tests a random sample of mutants of the core; SEED selects the sample. Forty minutes on two cores.
mutants-random: $(VENV)/.installed-dev
	$(BIN)/pytest -q -m slow tests/mutants
	$(BIN)/python -m tests.mutants.random_mutants --seed $(SEED) --count $(COUNT)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# Checks which component imports which; the contracts are in pyproject.toml.
imports: $(VENV)/.installed-dev
	$(BIN)/lint-imports --no-logo

check: lint types imports test

# Runs the catalogue example: rows and announcements that commit together. Starts and stops its own server.
demo: $(VENV)/.installed
	$(BIN)/python examples/catalog.py

# Installs what the benchmarks need besides .venv: servers from Debian, a Go module, jars from Maven. What can't
# be installed is left out, and the results say so.
bench-setup: $(VENV)/.installed
	@echo "Installing what the benchmarks need, which takes minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python -m benchmarks.setup

# Measures Tuff, its limits and its peers, about ten minutes. The results replace those in benchmarks/results/.
bench:
	$(BIN)/python -m benchmarks.full

# Looks for regressions in two minutes: each ratio to the bare handler has a limit. Shows multiples of the floor.
bench-quick: $(VENV)/.installed
	$(BIN)/python -m benchmarks.quick

# Measures how costs grow with topics, messages, readers, transactions and payloads.
bench-scale:
	$(BIN)/python -m benchmarks.scale

# Measures topics as source and sink of Spark, beside rows in memory and Kafka. Takes some minutes, needs Java 17.
bench-spark: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.spark

# Removes what tools left behind, and keeps data/ and snapshots/.
clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp that is older than pyproject.toml means that packages must be installed again.
$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Tuff needs Python 3.11 to 3.14 with the module venv, and none of python3 and python3.11 to python3.14 is one: apt-get install python3 python3-venv, or make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Installing the server into $(VENV); the first time takes up to a minute or two."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[server]'
	# pip compiles a wheel, but not an editable install; with PYTHONDONTWRITEBYTECODE each start would compile everything.
	$(BIN)/python -m compileall -q kernel process tx messaging admin tuff tuff_cli tuff_storage
	touch $@

$(NEWEST)/.installed: pyproject.toml
	@echo "Installing the server and its tests into $(NEWEST), for the newest Python of this machine."
	"$$($(BIN)/python -m tests.release.pythons)" -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -e '.[server,hbase,test]'
	touch $@

$(VENV)/.installed-prove: $(VENV)/.installed-dev
	@echo "Installing what make prove needs into $(VENV)."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[prove]'
	touch $@

# Installs what a server needs to keep messages in HBase, and to be one of a cluster.
$(VENV)/.installed-hbase: $(VENV)/.installed
	@echo "Installing what HBase and a cluster need into $(VENV)."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[hbase,cluster]'
	touch $@

# Fetches HBase from Maven and builds its launcher. Later calls need no network.
$(HBASE)/.installed: coprocessor/runtime/pom.xml $(shell find coprocessor/runtime/src -type f)
	@echo "Fetching HBase with Maven; the first time takes some minutes."
	mvn -B -q -f coprocessor/runtime/pom.xml package dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(HBASE)/lib
	cp $(HBASE)/runtime/hbase-runtime-1.jar $(HBASE)/lib/
	$(PYTHON) -m tests.hbase.local_hbase
	touch $@

$(OBSERVER)/.installed: coprocessor/observer/pom.xml tests/golden/retention.json \
		$(shell find coprocessor/observer/src -type f)
	@echo "Building the observer with Maven; the first time takes a minute."
	mvn -B -q -f coprocessor/observer/pom.xml package
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what the tests need into $(VENV); the first time takes a minute or two."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@
