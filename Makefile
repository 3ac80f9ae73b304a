# Installs, runs and checks the plugin in a virtual environment of its own (.venv).
# Every step leaves a stamp in .venv/.stamps and does nothing when nothing has changed.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

PYTHON ?= python3.11
# The CUDA build of torch, which the usual index gives, serves as well; the CPU build is 4 GB smaller:
#   make setup TORCH_PIP_ARGS='--index-url https://download.pytorch.org/whl/cpu'
TORCH_PIP_ARGS ?=
# Beside vLLM 0.33: make demo VLLM_VERSION=0.33.0 TORCH_VERSION=2.14.0; 0.30: VLLM_VERSION=0.30.0
TORCH_VERSION ?= 2.13.0
VLLM_VERSION ?= 0.32.0
OTHER_VLLM := 0.33.0
OTHER_TORCH := 2.14.0
NEEDED_DISK_GB := 6
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# For tests/try_host.sh.
export PYTHON TORCH_PIP_ARGS
# cmake, ninja and the host's own tools come from the environment, not from the system.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# The C++ compiler that the user named with CXX, else g++, else clang++.
COMPILER = $(if $(filter default undefined,$(origin CXX)),$(shell command -v g++ || command -v clang++),$(CXX))
PLUGIN_SOURCES = $(shell find csrc src -type f ! -path '*/__pycache__/*' ! -name '*.so') \
	setup.py CMakeLists.txt pyproject.toml
# The part without torch, kernels by way of one target; torch's headers take clang-tidy minutes.
TIDY_SOURCES = $(wildcard csrc/core/*.cpp csrc/dispatch/*.cpp)
# Instruction sets below the best one, for the tests that run once per target.
LOWER_TARGETS = $(shell $(BIN)/python -c \
	'from cpu_backend import ops; print(*ops.load().runnable[1:])' 2>/dev/null)
CPP_SOURCES = $(shell find csrc tests/kernels -type f \
	\( -name '*.h' -o -name '*.cpp' -o -name '*.inl' \) 2>/dev/null)

# $(call step,what it does,command): one line, and the command's output only if it fails.
define step
	@echo "$(1)"
	@$(2) > $(STAMPS)/log 2>&1 || { cat $(STAMPS)/log; echo "error: failed: $(1)"; exit 1; } >&2
endef

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Variables: PYTHON=$(PYTHON)  TORCH_PIP_ARGS='$(TORCH_PIP_ARGS)'  ARGS='$(ARGS)' (for serve, demo, test)"

# ---- installation ------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMPS)/plugin  ## install everything into .venv and build the plugin

$(STAMPS)/venv:
	@command -v $(PYTHON) > /dev/null \
		|| { echo "error: $(PYTHON) was not found: install Python 3.11 or later, or name yours with PYTHON=python3.12." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
		|| { echo "error: $(PYTHON) is older than Python 3.11: name a later one with PYTHON=python3.12." >&2; exit 1; }
	@free_kb=$$(df -Pk . | awk 'NR == 2 {print $$4}'); \
		(( free_kb >= $(NEEDED_DISK_GB) * 1024 * 1024 )) \
		|| { echo "error: $$(( free_kb / 1024 )) MB of disk are free here and $(NEEDED_DISK_GB) GB are needed: free some space." >&2; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV) > /dev/null \
		|| { echo "error: '$(PYTHON) -m venv' failed: install its venv module (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/torch: $(STAMPS)/venv
	$(call step,installing torch $(TORCH_VERSION),$(PIP) install -q $(TORCH_PIP_ARGS) torch==$(TORCH_VERSION))
	@touch $@

$(STAMPS)/vllm: $(STAMPS)/torch
	$(call step,installing vllm $(VLLM_VERSION) without its GPU packages,$(PIP) install -q --no-deps vllm==$(VLLM_VERSION))
	@touch $@

# What that version of the host asks for, where it differs.
HOST_LIST := $(or $(wildcard requirements/host_$(basename $(VLLM_VERSION)).txt),requirements/host.txt)

$(STAMPS)/host: $(HOST_LIST) requirements/host_common.txt $(STAMPS)/vllm
	$(call step,installing $<,$(PIP) install -q -r $<)
	@touch $@

$(STAMPS)/%: requirements/%.txt $(STAMPS)/vllm
	$(call step,installing requirements/$*.txt,$(PIP) install -q -r $<)
	@touch $@

$(STAMPS)/compiler: $(STAMPS)/venv
	@[ -n "$(COMPILER)" ] \
		|| { echo "error: no C++ compiler was found: install g++ or clang++ (Debian, Ubuntu: apt install g++), or set CXX." >&2; exit 1; }
	@echo '#include <span>' | $(COMPILER) -std=c++20 -x c++ -fsyntax-only - 2> /dev/null \
		|| { echo "error: $(COMPILER) does not compile C++20, which torch's headers need: install g++ 11 or clang++ 14 or later." >&2; exit 1; }
	@touch $@

$(STAMPS)/plugin: $(PLUGIN_SOURCES) $(STAMPS)/compiler $(STAMPS)/host $(STAMPS)/build
	$(call step,building and installing the plugin,$(PIP) install -q --force-reinstall --no-build-isolation --no-deps .)
	@touch $@

# ---- the wheel ---------------------------------------------------------------------------------

# One for each minor version of torch that the wheel serves; their headers come from the index.
WHEEL_TORCH ?= 2.13.0 $(OTHER_TORCH)
# Whose wheel: make wheel MACHINE=aarch64 takes the cross compiler that tools/aarch64.cmake names.
MACHINE ?= $(shell uname -m)

$(STAMPS)/wheel: requirements/wheel.txt $(STAMPS)/venv
	$(call step,installing requirements/wheel.txt,$(PIP) install -q -r $<)
	@touch $@

.PHONY: wheel
wheel: $(STAMPS)/compiler $(STAMPS)/wheel  ## build one wheel for torch 2.13 and 2.14 into dist/
	$(call step,building the wheel for torch $(WHEEL_TORCH) on $(MACHINE),$(BIN)/python -m tools.wheel $(WHEEL_TORCH) --machine=$(MACHINE) --pip-args='$(TORCH_PIP_ARGS)')
	@tail -n 1 $(STAMPS)/log

# ---- running -----------------------------------------------------------------------------------

.PHONY: model serve demo
model: $(STAMPS)/plugin $(STAMPS)/test  ## make the demo model and print its path
	@$(BIN)/python -m cpu_backend.demo_model

serve: $(STAMPS)/plugin $(STAMPS)/test  ## serve the demo model over HTTP (ARGS= for vllm serve)
	@model=$$($(BIN)/python -m cpu_backend.demo_model); exec $(BIN)/vllm serve "$$model" --device cpu $(ARGS)

demo: $(STAMPS)/plugin $(STAMPS)/test  ## start a server, ask one question, show the answer and its speed
	@exec $(BIN)/python examples/demo.py $(ARGS)

# ---- checking ----------------------------------------------------------------------------------

# What every part appends its times and skips to; `make test` starts it anew unless it was given one.
REPORT_FILE := build/test_report.jsonl
export CPU_BACKEND_TEST_REPORT ?= $(CURDIR)/$(REPORT_FILE)
REPORT = $(PYTHON) -m tests.report
export CTEST_PARALLEL_LEVEL ?= $(shell nproc)

.PHONY: test test-all test-rest new-report kernel-test python-test foreign-kernel-test foreign-compile slow-test image-models-test \
	install-test host-test ipex-test aarch64-test lint
test: new-report kernel-test python-test  ## test every layer, in 20 to 30 minutes on two cores
	@$(REPORT) show

test-all: test test-rest  ## the same and all that is slow or foreign: everything .ci/run tests

# What a slow machine has no time for is slow tests: the last part, which ends anywhere.
test-rest: install-test foreign-kernel-test slow-test
	@$(REPORT) show

new-report: $(STAMPS)/venv
	@mkdir -p build; rm -f $(REPORT_FILE)

# $(call python_tests,which,markers,options)
python_tests = HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=passive $(REPORT) run "Python tests, $(1)" \
	$(BIN)/python -m pytest -m "$(2)" $(3) $(ARGS)
# Two files at a time: most wait for one thread of a server that starts.  More would take a lot of
# memory.  Threads of OpenMP that wait give their cores to the other file, or both crawl.
SIDE_BY_SIDE = -n 2 --no-loadscope-reorder
# $(call op_tests,instruction sets): all but what starts processes and sets theirs.  The instruction
# sets share them out; kernel-test has all kernels of each.
op_tests = share=0; for isa in $(1); do share=$$((share + 1)); \
	CPU_BACKEND_ISA=$$isa CPU_BACKEND_TEST_SHARE=$$share/$(words $(1)) $(REPORT) run "op tests, $$isa" \
	$(BIN)/python -m pytest -q tests/ops --ignore=tests/ops/test_runtime.py --ignore=tests/ops/test_schemas.py; done
# The one of the lower instruction sets that most CPUs have: it has all op tests for itself.
USUAL_TARGET = $(firstword $(filter avx2,$(LOWER_TARGETS)) $(LOWER_TARGETS))

# A provider of linear layers (docs/providers.md), one release for each of torch.
$(STAMPS)/zentorch: $(STAMPS)/vllm
	$(call step,installing zentorch,$(PIP) install -q 'zentorch==$(basename $(TORCH_VERSION)).*')
	@touch $@

python-test: $(STAMPS)/plugin $(STAMPS)/test $(STAMPS)/ray $(STAMPS)/zentorch  ## run the quick Python tests (ARGS= for pytest)
	@$(call python_tests,quick,not slow,$(SIDE_BY_SIDE))
	@$(call op_tests,$(USUAL_TARGET))

slow-test: $(STAMPS)/plugin $(STAMPS)/test $(STAMPS)/ray $(STAMPS)/torchao image-models-test  ## run the slow Python tests (ARGS= for pytest)
	@$(call python_tests,slow,slow,$(SIDE_BY_SIDE))
	@$(call op_tests,$(filter-out $(USUAL_TARGET),$(LOWER_TARGETS)))

# Apart from .venv: its package asks for the CUDA build of torch, and all other tests show that
# nothing but such models needs it.  The others are for one model each.
TORCHVISION = $(CURDIR)/$(VENV)/torchvision
TORCHVISION_VERSION = $(shell PYTHONPATH=src $(BIN)/python -c \
	'from cpu_backend.serving.packages import torchvision_for; print(torchvision_for("$(TORCH_VERSION)"))')
$(STAMPS)/torchvision: $(STAMPS)/venv
	$(call step,fetching torchvision,$(PIP) install -q --no-deps --upgrade --target $(VENV)/torchvision \
		$(TORCH_PIP_ARGS) torchvision==$(TORCHVISION_VERSION))
	@$(PIP) install -q --no-deps --target $(VENV)/torchvision timm num2words docopt
	@$(BIN)/python -m tools.cuda_stubs $(VENV) --package $(VENV)/torchvision/torchvision > /dev/null
	@touch $@

$(STAMPS)/torchao: $(STAMPS)/venv
	$(call step,fetching torchao,$(PIP) install -q --no-deps --upgrade --target $(VENV)/torchao torchao==0.18.0)
	@touch $@

image-models-test: $(STAMPS)/plugin $(STAMPS)/test $(STAMPS)/torchvision  ## compare all models of images with transformers
	@ZOO=all HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=passive PYTHONPATH="$(TORCHVISION)" LD_LIBRARY_PATH="$(TORCHVISION)/torchvision" $(REPORT) run "models of images" \
		$(BIN)/python -m pytest -n 2 --dist load tests/zoo/test_images.py tests/zoo/test_checkpoints.py tests/zoo/test_gguf_pictures.py \
		tests/features/test_realtime_segments.py

TORCH_FOLDER = $(shell $(BIN)/python -c "import importlib.util as u; print(*u.find_spec('torch').submodule_search_locations)")
# $(call kernel_tests,preset,needed tools)
kernel_tests = $(REPORT) run $(2:%=--needs %) "kernel tests, $(1)" bash -c '$(BIN)/cmake --workflow --preset $(1) \
	> $(STAMPS)/log 2>&1 || { cat $(STAMPS)/log >&2; exit 1; }; grep "tests passed" $(STAMPS)/log; \
	$(PYTHON) -m tests.targets ran $(1)'

kernel-test: $(STAMPS)/build $(STAMPS)/compiler  ## run the C++ kernel tests
	@$(call kernel_tests,native)

# Foreign CPUs run under qemu, x86 CPUs that this one may not be under Bochs.
foreign-kernel-test: $(STAMPS)/build $(STAMPS)/compiler  ## run the C++ kernel tests on emulated CPUs
	@$(call kernel_tests,qemu-aarch64,aarch64-linux-gnu-g++ qemu-aarch64-static)
	@$(call kernel_tests,qemu-s390x,s390x-linux-gnu-g++ qemu-s390x-static)
	@$(if $(filter x86_64,$(shell uname -m)),$(call kernel_tests,bochs-x86_64,bochs-headless))
	@$(MAKE) --no-print-directory foreign-compile

# What no machine here can run, so that it can be built where one can.
foreign-compile: $(STAMPS)/build $(STAMPS)/compiler  ## compile all libraries for s390x, the kernels for macOS
	@$(REPORT) run --needs s390x-linux-gnu-g++ "libraries for s390x" tests/try_s390x.sh "$(TORCH_FOLDER)"
	@$(REPORT) run --needs python-zig "kernels for macOS" bash -c '$(BIN)/cmake --workflow --preset macos \
		> $(STAMPS)/log 2>&1 || { cat $(STAMPS)/log >&2; exit 1; }'

# One wheel without a compiler, beside each vLLM in an environment of its own, and `pip install -e`;
# `pip install .` is what all other tests run on.
install-test: $(STAMPS)/plugin $(STAMPS)/test wheel  ## try the wheel beside each vLLM, and pip install -e
	@$(REPORT) run "wheel beside vLLM 0.32.0" tests/try_host.sh 2.13.0 0.32.0
	@rm -rf build/env_host_0.32.0 # 4 GB, which the next one takes
	@$(REPORT) run "wheel and a few tests beside vLLM $(OTHER_VLLM)" \
		tests/try_host.sh $(OTHER_TORCH) $(OTHER_VLLM) few
	@$(REPORT) run "sources of vLLM $(OTHER_VLLM)" \
		$(BIN)/python -m tools.host_diff installed build/env_host_$(OTHER_VLLM)/lib/python3*/site-packages --names
	@$(REPORT) run "pip install -e" tests/try_editable.sh

host-test: $(STAMPS)/compiler wheel  ## run a choice of the tests beside the other vLLM and its torch
	@$(REPORT) run "tests beside vLLM $(OTHER_VLLM)" tests/try_host.sh $(OTHER_TORCH) $(OTHER_VLLM) more

# Not part of test-all: another torch (1 GB), and all libraries built for it.
ipex-test: $(STAMPS)/build $(STAMPS)/compiler  ## test Intel Extension for PyTorch as a provider
	@$(REPORT) run "provider ipex" tests/try_ipex.sh $(PYTHON)

# Not part of test-all: the host for another CPU (3 GB), and 19 minutes.
aarch64-test: $(STAMPS)/plugin $(STAMPS)/test  ## run the whole plugin on an emulated ARM server
	@$(REPORT) run --needs aarch64-linux-gnu-g++ --needs qemu-aarch64-static --needs apt-get \
		"emulated ARM server" bash -c '$(MAKE) --no-print-directory wheel MACHINE=aarch64 \
		&& tests/try_aarch64.sh $(TORCH_VERSION) $(VLLM_VERSION)'

lint: $(STAMPS)/lint $(STAMPS)/host  ## check formatting, style and types
	@echo "ruff check"; $(BIN)/ruff check --quiet .
	@echo "ruff format"; $(BIN)/ruff format --quiet --check .
	@echo "mypy"; $(BIN)/mypy --no-error-summary
	@echo "clang-format"; $(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)
	@echo "clang-tidy"; $(BIN)/clang-tidy --quiet $(TIDY_SOURCES) -- -std=c++17 -Icsrc \
		-DCPU_BACKEND_TARGET=scalar 2> /dev/null

# ---- images -------------------------------------------------------------------------------------

.PHONY: image image-test
image: $(STAMPS)/venv  ## build the image of Dockerfile.cpu with buildah (ARGS='--arch arm64', or for buildah bud)
	@$(REPORT) run --needs buildah "image" $(BIN)/python -m tools.image build $(ARGS)

image-test: $(STAMPS)/plugin $(STAMPS)/test  ## ask a server in the image a question, under several limits
	@$(REPORT) run --needs buildah --needs root --needs unshare "server in the image" bash -c \
		'$(BIN)/python -m tools.image test $(ARGS) --model "$$($(BIN)/python -m cpu_backend.demo_model)"'

# ---- removing ----------------------------------------------------------------------------------

.PHONY: clean distclean
clean:  ## remove what was built; .venv stays and the plugin is built anew next time
	@rm -rf build dist src/*.egg-info src/cpu_backend/*.so .pytest_cache .mypy_cache .ruff_cache $(STAMPS)/plugin
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean  ## remove .venv as well
	@rm -rf $(VENV)
