# Everything a person or a machine runs here. Needs Python 3.11 or later, make and a network.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HBASE := build/hbase
OBSERVER := build/observer
PYTEST_ARGS ?= -n 3 --dist loadfile
SEED ?= 1
COUNT ?= 300

.PHONY: run test test-all prove prove-long mutants mutants-random blocking lint types imports check demo clean \
	bench-setup bench bench-quick bench-scale bench-spark hbase test-hbase test-hbase-one test-spark \
	test-release observer
.NOTPARALLEL:

# Serve on http://127.0.0.1:7411, with all data in data/ and snapshots/.
run: $(VENV)/.installed
	exec $(BIN)/python server.py --config conf/standalone.toml

# A real HBase on this machine, with its files in data/hbase and its gateways on the ports that
# conf/distributed.toml names; ends with Ctrl-D. Needs JDK 17, and Maven for the first time.
hbase: $(HBASE)/.installed
	exec java @coprocessor/runtime/jvm.options -cp '$(HBASE)/lib/*' \
		tuff.runtime.LocalHBase all data/hbase 9181 9182 9183 9090 9091

# What has to be green before a commit, in two to three minutes on two cores.
test: $(VENV)/.installed-dev
	$(BIN)/pytest -q -m "not slow" --durations=10 $(PYTEST_ARGS) $(MORE)

# The jar that region servers load, build/observer/tuff-observer-1.jar, with its tests.
observer: $(OBSERVER)/.installed

# Everything on a real HBase: its own tests in one JVM and in five, and those of the server.
test-hbase: test-hbase-one
	$(BIN)/pytest -q -m cluster tests/hbase
	$(BIN)/python -m tests.hbase.serving tests/http -q -m "not slow" $(PYTEST_ARGS)

# The part of it with one JVM.
test-hbase-one: $(VENV)/.installed-dev $(HBASE)/.installed $(OBSERVER)/.installed
	$(BIN)/pytest -q -m "hbase and not cluster" tests/hbase

# What Spark takes longer for: a server of Spark Connect, declarative pipelines, pauses between stages.
test-spark: $(VENV)/.installed-dev
	$(BIN)/pytest -q -m slow tests/spark $(MORE)

# The sdist and the wheel, installed without the checkout, with each extra; two to three minutes.
test-release: $(VENV)/.installed-dev
	$(BIN)/pytest -q -m slow tests/release

# And the longer programs.
test-all: $(VENV)/.installed-dev
	$(BIN)/pytest -q $(PYTEST_ARGS)

# Every attack on the promises, in twenty minutes on two cores; prove-long takes hours.
prove: $(VENV)/.installed-prove
	$(BIN)/python -m tests.prove

prove-long: $(VENV)/.installed-prove
	$(BIN)/python -m tests.prove --long

# Generates most of tuff/blocking from tuff/aio (decision 0009).
blocking: $(VENV)/.installed-dev
	$(BIN)/python -m tests.client.generate_blocking

# Plants bugs in copies of the tree; each must make the test fail that is named for it.
mutants: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutants

# A random sample of mutants of the core; SEED draws another one. Some forty minutes on two cores.
mutants-random: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutants.random_mutants --seed $(SEED) --count $(COUNT)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# Which room may know which: the contracts stand in pyproject.toml.
imports: $(VENV)/.installed-dev
	$(BIN)/lint-imports --no-logo

check: lint types imports test

# A story of rows and announcements that commit together; starts and stops its own server.
demo: $(VENV)/.installed
	$(BIN)/python examples/catalog.py

# What measurements need beside .venv: servers of Debian, a module of Go, jars of Maven. Once, with a
# network; what can't be had is left out, and the results say so.
bench-setup: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python -m benchmarks.setup

# Tuff, its limits and its peers, about ten minutes; the results replace those in benchmarks/results/.
bench:
	$(BIN)/python -m benchmarks.full

# A minute against regressions: each ratio to the bare handler has a floor.
bench-quick: $(VENV)/.installed
	$(BIN)/python -m benchmarks.quick

# How each cost grows with topics, messages, readers, transactions, payloads.
bench-scale:
	$(BIN)/python -m benchmarks.scale

# Topics as source and sink of Spark, beside rows in memory and Kafka; some minutes, needs Java 17.
bench-spark: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.spark

# What tools left behind. Data and snapshots are yours, and stay.
clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are older than pyproject.toml exactly when something has to be installed again.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Tuff needs Python 3.11 or later and this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[server]'
	# As pip does with a wheel: where PYTHONDONTWRITEBYTECODE is set, each start compiled everything.
	$(BIN)/python -m compileall -q process tx messaging admin tuff
	touch $@

$(VENV)/.installed-prove: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[prove]'
	touch $@

# What a server needs to keep messages in HBase, and nothing else.
$(VENV)/.installed-hbase: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[hbase]'
	touch $@

# HBase as Maven has it, and the launcher. Afterwards no network is needed.
$(HBASE)/.installed: coprocessor/runtime/pom.xml $(shell find coprocessor/runtime/src -type f)
	mvn -B -q -f coprocessor/runtime/pom.xml package dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(HBASE)/lib
	cp $(HBASE)/runtime/hbase-runtime-1.jar $(HBASE)/lib/
	touch $@

$(OBSERVER)/.installed: coprocessor/observer/pom.xml tests/golden/retention.json \
		$(shell find coprocessor/observer/src -type f)
	mvn -B -q -f coprocessor/observer/pom.xml package
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@
