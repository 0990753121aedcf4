"""The site that `make site` has built, opened from the disk: pages of every kind, and the search, where words of the
field find the right page first."""

import browser
import pytest
from scripts import ROOT

pytestmark = pytest.mark.browser
SITE = ROOT / "site"
KINDS = "index howto/profile model/index neighbours reference/odcsim notebooks/1_lengths".split()
# Guides stand before these wherever both have the words.
LATE = (
    "reference/ log changelog contributing published-runs validation-runs paper-cells pairs design decisions contract"
)
RESULTS = "[...document.querySelectorAll('#search-results li a')].map((found) => found.getAttribute('href'))"
# What people of the field type into the search, and the page that is to be the first result, or one of two.
FOUND = """
howto/slow-step: straggler, idle time, bubble, pipeline parallelism
howto/perfetto howto/slow-step: profiler trace
odc: load imbalance, all-gather, reduce-scatter, gradient accumulation, on-demand communication
balancing: load balancing
howto/flags: dynamic batching, sequence packing
howto/flags howto/audit: padding
howto/audit: audit, training configuration
howto/hang: Flight Recorder
howto/lengths: truncation, sequence length
howto/recompute: activation checkpointing, out of memory, OOM
howto/recompute model/memory: peak memory
users model/memory: token limit
faq: resume from a checkpoint, speedup, LoRA, multimodal
model/context faq: context parallelism
neighbours: MFU, Megatron
model/statistics: confidence interval
howto/network: hybrid sharding, HSDP
howto/own-cluster: InfiniBand, heterogeneous cluster
howto/check engine/gpus: NCCL
howto/check: deadlock
engine/gpus faq: NVSHMEM
howto/rl: GRPO, rollouts
howto/pairs: DPO
howto/rent howto/cheaper: training cost
howto/rent: price, which GPU to rent, deadline, budget
trl howto/flags: TRL
verl howto/flags: verl
torchtitan: torchtitan
hugging-face: Hugging Face Trainer
own-loop losses: sampler
own-loop: DataLoader
howto/launch: fault tolerance, Slurm
howto/calibrate: throughput
"""
ROWS = [row.split(": ") for row in FOUND.strip().splitlines()]
SEARCHES = {words: pages.split() for pages, found in ROWS for words in found.split(", ")}


@pytest.fixture(scope="module")
def shown(chromium):
    if not (SITE / "index.html").exists():
        pytest.skip("no site here: make site")
    return chromium


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", browser.SCHEMES)
def test_a_page_fits_its_window_and_complains_of_nothing(shown, scheme, width, pictures):
    for kind in KINDS:
        with browser.window(shown, width, scheme) as seen:
            seen.open(SITE / f"{kind}.html")
            if kind.startswith("notebooks"):
                seen.drawn(2)
            assert seen.errors == [], kind
            assert seen.accessible() == [], kind
            assert not seen.page.evaluate("document.documentElement.scrollWidth > innerWidth"), kind
            dark = seen.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
            assert dark is (scheme == "dark"), kind
            seen.picture(pictures / f"site-{kind.replace('/', '-')}-{width}-{scheme}.png")


def test_words_are_found_without_a_server(shown):
    with browser.window(shown) as seen:
        seen.page.goto((SITE / "search.html").as_uri() + "?q=break-even")
        # Results are put there one by one: the page is waited for, and not whichever comes first.
        seen.page.wait_for_selector('#search-results li a[href*="howto/break-even.html"]', timeout=30_000)
        # The excerpts below each result are fetched, which a browser allows from a server alone.
        assert [error for error in seen.errors if "fetch" not in error.lower() and "ERR_" not in error] == []


@pytest.fixture(scope="module")
def results(shown):
    """Addresses in the order of the results, as somebody sees them who types the words."""
    with browser.window(shown) as seen:

        def ask(words: str) -> list[str]:
            seen.page.goto((SITE / "index.html").as_uri())
            seen.page.fill("input[name=q]", words)
            seen.page.press("input[name=q]", "Enter")
            # The best result is put there first, and the others below it, one by one.
            seen.page.wait_for_selector("#search-results li a, #search-results p:not(:empty)", timeout=30_000)
            return list(seen.page.evaluate(RESULTS))

        ask.seen = seen
        yield ask


@pytest.mark.parametrize("words", SEARCHES)
def test_the_right_page_is_found_first(results, words):
    found = [address.partition(".html")[0] for address in results(words)]
    assert found, "nothing is found"
    assert found[0] in SEARCHES[words]


def test_references_logs_and_appendices_come_after_guides(results):
    results("straggler")
    results.seen.page.wait_for_function("!/Searching/.test(document.querySelector('#search-results h2').textContent)")
    late = [address.startswith(tuple(LATE.split())) for address in results.seen.page.evaluate(RESULTS)]
    assert any(late)
    assert late == sorted(late)
