# vivace: build, run, test. `make demo` and `make test` need Python 3.10+ (with headers and venv), g++, make and git.

PYTHON ?= python3
CASES  ?= 20000
JOBS   ?= $(shell nproc)
MODEL  ?= smollm2-135m
PROMPT ?= Explain in two sentences why the sky is blue.

VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
NATIVE := CMakeLists.txt $(shell find native -name '*.cc' -o -name '*.h' 2>/dev/null)
PYPATHS := src tests evidence

.DEFAULT_GOAL := help
.PHONY: help build demo test test-arm lint type format bench evidence docs clean sanitize fuzz native-test

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit("vivace needs Python 3.10 or newer") if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The package in the environment is the source folder itself; the extension module is built into it below.
$(VENV)/.runtime: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) scikit-build-core nanobind cmake ninja
	$(PIP) --no-build-isolation -C editable.mode=inplace -C wheel.cmake=false -e .
	@touch $@

$(VENV)/.test: $(VENV)/.runtime
	$(PIP) --no-build-isolation -C editable.mode=inplace -C wheel.cmake=false -e '.[test]'
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	$(PIP) --no-build-isolation -C editable.mode=inplace -C wheel.cmake=false -e '.[dev]'
	@touch $@

# $(call cmake,BUILD FOLDER,EXTRA FLAGS)
cmake = PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake -S . -B $(1) -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(PY) \
	-Dnanobind_DIR="$$($(PY) -m nanobind --cmake_dir)" $(2) > $(1).log && \
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake --build $(1) -j $(JOBS)

build/release/.built: $(VENV)/.runtime $(NATIVE)
	@mkdir -p build
	$(call cmake,build/release,-DCMAKE_BUILD_TYPE=Release)
	$(VENV)/bin/cmake --install build/release --prefix src > build/install.log
	@touch $@

build: build/release/.built  ## environment and native core

demo: build  ## fetch the default model and run it
	@$(VENV)/bin/vivace models pull $(MODEL)
	@$(VENV)/bin/vivace run $(MODEL) -p "$(PROMPT)"

native-test: build  ## tests of the native core alone
	$(VENV)/bin/ctest --test-dir build/release --output-on-failure

test: build $(VENV)/.test  ## everything: environment, build, all tests
	$(VENV)/bin/ctest --test-dir build/release --output-on-failure --no-tests=ignore
	$(PY) -m pytest $(ARGS)

lint: $(VENV)/.dev  ## style of Python and C++
	$(VENV)/bin/ruff check $(wildcard $(PYPATHS))
	$(VENV)/bin/ruff format --check $(wildcard $(PYPATHS))
	find native -name '*.cc' -o -name '*.h' | xargs $(VENV)/bin/clang-format --dry-run --Werror

format: $(VENV)/.dev  ## rewrite sources in the project's style
	$(VENV)/bin/ruff check --fix $(wildcard $(PYPATHS))
	$(VENV)/bin/ruff format $(wildcard $(PYPATHS))
	find native -name '*.cc' -o -name '*.h' | xargs $(VENV)/bin/clang-format -i

type: $(VENV)/.dev  ## static types
	$(VENV)/bin/mypy

bench: build  ## measure the default model
	$(VENV)/bin/vivace models pull $(MODEL)
	$(VENV)/bin/vivace bench $(MODEL) $(ARGS)

evidence:  ## the checks that methods ship with
	@echo "no methods yet: evidence arrives with the first of them"

docs: build  ## check that the commands and files that the documentation names exist
	$(PY) docs/check.py

# Native tests under AddressSanitizer with UndefinedBehaviorSanitizer, then under ThreadSanitizer.
sanitize: $(VENV)/.runtime  ## native tests under ASan, UBSan and TSan
	@mkdir -p build
	$(call cmake,build/address,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DVIVACE_SANITIZE=address)
	$(VENV)/bin/ctest --test-dir build/address --output-on-failure
	$(call cmake,build/thread,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DVIVACE_SANITIZE=thread)
	$(VENV)/bin/ctest --test-dir build/thread --output-on-failure

# The module is loaded into an ordinary interpreter, which must have the sanitizer's library before any other.
fuzz: $(VENV)/.runtime  ## CASES broken model files through the readers, under ASan and UBSan
	@mkdir -p build
	$(call cmake,build/address,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DVIVACE_SANITIZE=address) --target _native
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:malloc_context_size=8:quarantine_size_mb=8 $(PY) tests/model/fuzz.py --native build/address/_native*.so --cases $(CASES)

ARM_CXX  := aarch64-linux-gnu-g++
ARM_QEMU := qemu-aarch64
ARM_ROOT := /usr/aarch64-linux-gnu

test-arm: $(VENV)/.runtime  ## native tests for 64-bit ARM, under an emulator
	@for tool in $(ARM_CXX) $(ARM_QEMU); do command -v $$tool > /dev/null || { \
	  echo "test-arm skipped: there is no $$tool (Debian: g++-aarch64-linux-gnu, qemu-user)"; exit 0; }; done; \
	mkdir -p build && $(call cmake,build/arm,-DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
	  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$(ARM_CXX) \
	  "-DCMAKE_CROSSCOMPILING_EMULATOR=$(ARM_QEMU);-L;$(ARM_ROOT)") && \
	$(VENV)/bin/ctest --test-dir build/arm --output-on-failure --timeout 3600

clean:  ## remove everything that was built, the environment too
	rm -rf build dist $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src -name '_native*.so' -delete
	find . -name __pycache__ -prune -exec rm -rf {} +
