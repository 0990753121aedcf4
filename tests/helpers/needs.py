"""Tests that cannot even be collected where an optional package is missing. A run's header names what is left out."""

NEEDS = {
    "torch": [
        "odc_engine",
        "docs/test_[cprtv]*.py",
        "benchmarks/test_bench_engine.py",
    ],
    "triton": ["odc_engine/kernels"],
    "nvshmem": ["odc_engine/backends/test_nvshmem.py"],
    "cuda": ["odc_engine/places/test_green.py"],
    "pyarrow": ["odcsim/reading/test_files.py"],
    "tokenizers": ["odcsim/reading/test_tokenizing*.py"],
    "transformers": [
        "odc_engine/trainers/test_hugging_face*.py",
        "odcsim/reading/test_tokenizing_alike.py",
        "odcsim/neighbours/test_flags_parsed.py",
        "odcsim/neighbours/test_three_commands.py",
    ],
    "torchtitan": ["odc_engine/trainers/test_titan.py"],
    "trl": [
        "benchmarks/test_bench_priced.py",
        "docs/test_trl.py",
        "docs/test_trainer_programs.py",
        "odc_engine/trainers/test_balanced.py",
        "odc_engine/trainers/test_losses.py",
        "odc_engine/trainers/test_paths.py",
        "odc_engine/trainers/test_preferences.py",
        "odc_engine/trainers/test_rollouts.py",
        "odc_engine/trainers/test_seen_answers.py",
        "odc_engine/trainers/test_trl_trainers.py",
        "odc_engine/trainers/test_vision.py",
        "odc_engine/trainers/test_watched_trainers.py",
        "odcsim/checking/test_check_trl.py",
        "odcsim/neighbours/test_as_priced.py",
    ],
    "verl": ["odc_engine/packings/test_trainers_packed.py", "odc_engine/trainers/test_verl.py"],
}
