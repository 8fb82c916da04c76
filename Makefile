# Everything a fresh machine needs: Python >= 3.11, a C++20 compiler and make.
#   make demo       plan a real model, print the plan and write its page, out/report.html
#   make serve      explore plans on a local page
#   make test       the fast tests (no torch, no browser)
#   make test-all   the slower tests too (torch, a solver, Dask, a browser, parsers of frameworks),
#                   installing what they need
#   make test-exports-all exported files through the parsers of more frameworks
#   make test-papers published figures, and at length what others try on a sample
#   make papers     the numbers of papers beside ours, into benchmarks/reports
#   make test-laws  the fast tests on many more random cases, new ones on every run
#   make attack     look for plans that beat what is called proved, until stopped (ATTACK_SEED=1)
#   make check      format, lint, types, architecture
#   make bench      the smoke benchmarks
#   make corpus     many questions, their answers compared with the stored ones
#   make docs       the site, into build/docs
#   make pages      the pictures and tables that pages of the site store
#   make wheel      a wheel and a source archive, tried where there is no compiler
#   make sanitize   the same tests on an address + undefined-behaviour build
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Most of what is installed is never imported: what is gets compiled then, once, and is kept also
# where the environment says otherwise. Else every command of the tests compiles it all again.
export PYTHONDONTWRITEBYTECODE :=
PIP_INSTALL := python -m pip install --quiet --disable-pip-version-check --no-compile
PIP := $(BIN)/$(PIP_INSTALL)
SANITIZE_VENV := .venv-sanitize
# What the pipeline adapter is tested with; pip takes the CPU build where one is offered.
TORCH ?= torch==2.13.0
LIBRARY ?= transformers>=5
SOLVER ?= ortools>=9.10
CLUSTER ?= distributed>=2024.8
SERVE := 'fastapi>=0.115' 'uvicorn>=0.30'
# What agents are served with, and figures drawn.
OTHERS := 'mcp>=1.10' 'matplotlib>=3.9' 'pandas>=2'
# A driver of browsers that brings axe-core, which alone is used.
AXE := --no-deps axe-playwright-python==0.1.8
DOCS := sphinx==9.0.4 furo==2025.12.19 myst-parser==5.2.0

# Reference data is found through this variable alone; tests that need it skip visibly without it.
ifneq ($(wildcard ../shared/data),)
export TRAINWRIGHT_SHARED ?= $(abspath ../shared)
endif

# The parsers of exported files, without what they would bring along.
EXPORTS ?= megatron-core==0.16.1 accelerate==1.15.0
EXPORTS_NEED ?= packaging pyyaml psutil safetensors huggingface_hub
TITAN := build/titan
TITAN_VERSIONS ?= 0.2.2 0.3.0
TITAN_NEEDS ?= tyro spmd_types==0.2.3 torchdata torch_checkpointing tensorboard pillow einops \
  docstring_parser shtab typeguard absl-py protobuf werkzeug tensorboard_data_server grpcio markdown

# The first wheel with the parser of arguments; it asks for Python 3.12, and its modules run before.
MEGATRON := build/megatron
MEGATRON_NEEDS ?= --ignore-requires-python --python-version 3.12 --only-binary=:all: \
  megatron-core==0.17.0
MEGATRON_SRC ?= $(abspath $(MEGATRON))

DEEPSPEED := build/deepspeed
DEEPSPEED_NEEDS ?= deepspeed==0.19.8 hjson py-cpuinfo einops msgpack tqdm

# Trainers' own parsers, with what these import.
TRAINERS := build/trainers
TRAINERS_NEEDS ?= trl==1.16.0 axolotl==0.19.0 llamafactory==0.9.5 nemo-automodel==0.7.0 \
  accelerate==1.15.0 datasets peft torchao pyarrow dill multiprocess xxhash addict colorama \
  omegaconf 'antlr4-python3-runtime==4.9.*'

NATIVE_SOURCES := CMakeLists.txt pyproject.toml $(wildcard native/*/*)
PYTEST := $(BIN)/python -m pytest
# Tests of one file stay together, with what is made once for them.
ON_ALL_CORES := -n auto --maxprocesses 4 --dist worksteal

ATTACK_SEED ?= 1
ATTACK_QUESTIONS ?= 100000

.PHONY: demo serve attack test test-all test-exports-all test-papers papers test-laws check format bench corpus docs pages wheel sanitize clean venv

venv: $(VENV)/.installed

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) 'scikit-build-core>=0.10' 'nanobind>=2.4' 'cmake>=3.26' ninja
	touch $@

# An editable install that keeps its build folder: only what changed is compiled again.
$(VENV)/.installed: $(VENV)/.python $(NATIVE_SOURCES)
	$(PIP) --no-build-isolation \
	  --config-settings=build-dir=build/venv -e '.[test]'
	touch $@

# The extras of the project that is installed, without building it again.
$(VENV)/.check $(VENV)/.bench: $(VENV)/.%: pyproject.toml | $(VENV)/.installed
	$(PIP) 'trainwright[$*]'
	touch $@

demo: venv
	mkdir -p out
	$(BIN)/trainwright plan llama3-70b --cluster dgx-h100 --nodes 8 --global-batch 512 \
	  --sequence 8192 --framework megatron -o out/plan.json
	$(BIN)/trainwright report out/plan.json -o out/report.html
	@echo 'open out/report.html in a browser'

serve: venv
	$(PIP) $(SERVE)
	$(BIN)/trainwright serve

# On all cores, up to four: each process collects the tests anew.
test: venv
	$(PYTEST) $(ON_ALL_CORES)

test-all: venv $(VENV)/.extras $(VENV)/.exports $(VENV)/.docs
	$(PYTEST) $(ON_ALL_CORES) -m '(slow or torch or exact or serve or browser or exports) and not papers'

# Exported files through the parsers of more frameworks, which lie beside the environment.
test-exports-all: venv $(VENV)/.exports $(TITAN)/.installed $(DEEPSPEED)/.installed \
  $(MEGATRON)/.installed $(TRAINERS)/.installed
	TRAINWRIGHT_TITAN=$(abspath $(TITAN)) TRAINWRIGHT_DEEPSPEED=$(abspath $(DEEPSPEED)) \
	  TRAINWRIGHT_TRAINERS=$(abspath $(TRAINERS)) MEGATRON_SRC=$(MEGATRON_SRC) $(PYTEST) -m exports

# Published figures, and at length what every change tries on a sample: more small spaces, kinds of
# models, pages and jobs. An hour and more.
test-papers: venv $(VENV)/.extras $(VENV)/.docs
	$(PYTEST) $(ON_ALL_CORES) -m papers

# Without the reference data some papers are left out, and nothing is stored.
papers: venv
	$(BIN)/python benchmarks/papers.py $(if $(TRAINWRIGHT_SHARED),--write)

attack: venv
	$(BIN)/python benchmarks/attack.py --seed $(ATTACK_SEED) --questions $(ATTACK_QUESTIONS) \
		--frameworks $(ATTACK_QUESTIONS) --pools $(ATTACK_QUESTIONS)

test-laws: venv
	$(PYTEST) --hypothesis-profile=thorough

$(VENV)/.extras: | $(VENV)/.python
	$(PIP) '$(TORCH)' '$(LIBRARY)' '$(SOLVER)' '$(CLUSTER)' $(SERVE) $(OTHERS)
	$(PIP) $(AXE)
	touch $@

$(VENV)/.docs: | $(VENV)/.python
	$(PIP) $(DOCS)
	touch $@

$(VENV)/.exports: $(VENV)/.extras
	$(PIP) $(EXPORTS_NEED)
	$(PIP) --no-deps $(EXPORTS)
	touch $@

$(TITAN)/.installed: | $(VENV)/.extras
	$(PIP) --no-deps --target $(TITAN)/common $(TITAN_NEEDS)
	$(PIP) --target $(TITAN)/data datasets tokenizers 'click>=8.2,<8.4'
	for version in $(TITAN_VERSIONS); do $(PIP) --no-deps \
	  --target $(TITAN)/$$version torchtitan==$$version || exit 1; done
	touch $@

$(MEGATRON)/.installed: | $(VENV)/.extras
	$(PIP) --no-deps --target $(MEGATRON) $(MEGATRON_NEEDS)
	touch $@

$(TRAINERS)/.installed: | $(VENV)/.extras
	$(PIP) --no-deps --target $(TRAINERS) $(TRAINERS_NEEDS)
	touch $@

$(DEEPSPEED)/.installed: | $(VENV)/.extras
	DS_BUILD_OPS=0 $(PIP) --no-deps --no-build-isolation \
	  --target $(DEEPSPEED) $(DEEPSPEED_NEEDS)
	touch $@

check: venv $(VENV)/.check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(wildcard native/*/*.cpp native/*/*.hpp)

format: venv $(VENV)/.check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(wildcard native/*/*.cpp native/*/*.hpp)

bench: venv $(VENV)/.bench
	$(PYTEST) benchmarks/smoke --benchmark-only --override-ini addopts=''

# Exit code 1 where an answer changed; see benchmarks/corpus/README.md.
corpus: venv
	$(BIN)/python benchmarks/corpus/run.py

# What pages of the site show and is stored beside them: pictures, with a Chromium on PATH those
# of pages, and the tables of accuracy.
pages: venv
	$(PIP) $(SERVE)
	$(BIN)/python docs/pictures/draw.py
	$(BIN)/python docs/pictures/photograph.py
	$(if $(TRAINWRIGHT_SHARED),$(BIN)/python docs/write_accuracy.py $(TRAINWRIGHT_SHARED)/data/measured)

# Nothing is fetched while the site is built, nor when it is read.
docs: venv $(VENV)/.docs
	rm -rf build/docs build/docs-cache
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html \
	  -d build/docs-cache docs build/docs
	@echo 'open build/docs/index.html in a browser'

# The wheel is built from the source archive, so that the archive is known to be enough.
wheel: venv
	rm -rf dist && mkdir -p dist
	$(BIN)/python -c "from scikit_build_core.build import build_sdist; build_sdist('dist')"
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist dist/*.tar.gz
	$(BIN)/python wheels/check_archives.py dist
	wheels/try_wheel.sh $(BIN)/python dist build/wheel-env

# The interpreter itself is not instrumented, so the runtime is preloaded and leaks are not judged.
sanitize:
	$(PYTHON) -m venv $(SANITIZE_VENV)
	$(SANITIZE_VENV)/bin/$(PIP_INSTALL) 'scikit-build-core>=0.10' 'nanobind>=2.4' 'cmake>=3.26' ninja
	$(SANITIZE_VENV)/bin/$(PIP_INSTALL) --no-build-isolation \
	  --config-settings=build-dir=build/sanitize \
	  --config-settings=cmake.define.TRAINWRIGHT_SANITIZE=ON -e '.[test]'
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	  $(SANITIZE_VENV)/bin/python -m pytest -p no:cacheprovider

clean:
	rm -rf $(VENV) $(SANITIZE_VENV) build dist
