# Everything runs in .venv. `make demo` needs nothing but Python >= 3.11; `make test` is what CI runs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

# Two processes take these tests file by file, beside one that looks at what all processes of a machine share.
APART := -n 2 --dist loadfile
LAWS := tests/odcsim tests/docs tests/house tests/approved $(addprefix tests/odc_engine/,kernels decoder watching)
SLOW := tests/odcsim tests/docs
# $(call beside,FLAGS,FOLDERS): pytest of these folders, and beside it of all others.
beside = own=$$(mktemp -d); TMPDIR=$$own $(BIN)/pytest $(1) $(APART) $(2) > $$own/log 2>&1 & apart=$$!; \
  trap "kill $$apart 2>/dev/null; rm -rf $$own" EXIT; \
  $(BIN)/pytest $(1) $(2:%=--ignore=%); code=$$?; wait $$apart || code=1; cat $$own/log; exit $$code

.PHONY: demo test slow thorough approve freeze frozen break trainers site browser pictures oldest newest bench bench-once validate validate-gpu gpu-kit notebook balancing reproduce-paper uneven published coverage scaling clean

demo: .venv/core
	$(BIN)/odcsim demo

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(call beside,,$(LAWS))

slow: .venv/dev
	@$(call beside,-m "slow and not gpu",$(SLOW))

# All cases of drawn tests, and laws with examples of today: an hour and more.
thorough: export THOROUGH := 1
thorough: export BREAKING_SEED := $(shell date +%j)
thorough: test slow trainers

# What commands print, made anew: read it as a diff before it is committed.
approve: .venv/dev
	$(BIN)/python tests/helpers/transcripts.py

freeze: .venv/dev
	$(BIN)/python tests/odcsim/doors/frozen.py --write

frozen: .venv/dev
	$(BIN)/python tests/odcsim/doors/frozen.py

# Some twenty minutes on two quiet cores; `make slow` has two minutes of both.
break: .venv/dev
	$(BIN)/python tests/breaking/fuzz.py --inputs 20000
	$(BIN)/python tests/breaking/inject.py --faults 300

# The engine in trainers that others wrote, in a venv of its own, since their packages change what other tests find.
TRAINERS := tests/odc_engine/trainers tests/odc_engine/across/test_*_across.py \
	tests/docs/test_trl.py tests/docs/test_trainer_programs.py \
	tests/odcsim/reading/test_tokenizing_alike.py tests/odcsim/doors/test_dirty_data.py tests/odcsim/checking/test_check_trl.py \
	tests/odcsim/catalog/test_hf_classes.py tests/odcsim/neighbours tests/odcsim/show/pages/test_traces_of_viewers.py
trainers: .venv-trainers/dev
	.venv-trainers/bin/pytest -m "slow and not gpu" $(TRAINERS)
	.venv-trainers/bin/pytest tests/benchmarks/test_bench_priced.py -o addopts="-p no:dash -ra --strict-markers" --benchmark-disable

# The pages as a site, in site/: notebooks run, every warning an error, every link followed.
site: .venv/site
	$(BIN)/python docs/site/make.py

# Pages and exported notebooks in a real browser, which a distribution's packages have; without one the tests skip.
browser: .venv/browser
	$(BIN)/pytest -m browser tests/browser

# The same, and what they look like, in pictures/.
pictures: .venv/browser
	PICTURES=$(CURDIR)/pictures $(BIN)/pytest -m browser tests/browser

# The engine with the oldest torch that it is promised for, in a venv of its own.
OLDEST := tests/odc_engine/fsdp tests/odc_engine/runs/test_parity.py tests/odc_engine/backends tests/odc_engine/kernels
oldest: .venv-oldest/dev
	.venv-oldest/bin/pytest $(OLDEST)

.venv-oldest/dev: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip --disable-pip-version-check install -q -c constraints-oldest.txt -e '.[dev]'
	@touch $@

# ... and with the newest, whatever versions of all others it takes. Not in CI: some 5 GB, and others release when they do.
newest:
	$(PYTHON) -m venv .venv-newest
	PIP_CONFIG_FILE=/dev/null .venv-newest/bin/python -m pip --disable-pip-version-check install -q -U torch -e '.[dev]'
	.venv-newest/bin/pytest $(OLDEST)

bench: .venv/dev
	$(BIN)/pytest tests/benchmarks --benchmark-only -m ""

# Each benchmark's function once, at a small size where one takes long: whether it still works, no word on its time.
bench-once: .venv/dev
	$(BIN)/pytest tests/benchmarks -o addopts="-p no:dash -ra --strict-markers" --benchmark-disable -m "not gpu"

validate: .venv/dev
	$(BIN)/python docs/studies/validate.py

# Three commands of at most nine minutes, then the page.
validate-gpu: .venv/dev
	$(BIN)/python docs/studies/validate_gpu.py; code=$$?; \
	if [ $$code -ne 3 ]; then $(BIN)/python docs/studies/gpu_record.py validation-gpu; fi; exit $$code

published: .venv/core
	$(BIN)/python docs/studies/published.py

coverage: .venv/core
	$(BIN)/python docs/studies/coverage.py

scaling: .venv/core
	$(BIN)/python docs/studies/scaling.py

gpu-kit: .venv/dev
	$(BIN)/python docs/studies/gpu_kit.py

notebook: .venv/dev
	$(PIP) -e '.[dev,notebook]'
	$(BIN)/jupyter lab notebooks

balancing: .venv/core
	$(BIN)/python docs/studies/balancing.py

reproduce-paper: .venv/core
	$(BIN)/python docs/studies/reproduce_paper.py

uneven: .venv/core
	$(BIN)/python docs/studies/uneven.py

clean:
	rm -rf .venv .venv-oldest .venv-newest .venv-trainers

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/python pyproject.toml
	$(PIP) -e .
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml
	$(PIP) -e '.[dev]'
	@touch .venv/core $@

.venv/browser: .venv/dev
	command -v chromium || command -v google-chrome || (apt-get update -q && apt-get install -y -q --no-install-recommends chromium) \
	  || echo "no browser here, and none could be installed: these tests will skip"
	$(PIP) -e '.[dev,browser]'
	@touch $@

.venv/site: .venv/dev
	$(PIP) -e '.[dev,docs]'
	@touch $@

.venv-trainers/dev: pyproject.toml constraints.txt requirements-trainers.txt
	$(PYTHON) -m venv .venv-trainers
	.venv-trainers/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[dev,trainers,hta]'
	.venv-trainers/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt --no-deps -r requirements-trainers.txt
	@touch $@
