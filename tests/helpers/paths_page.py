"""What becomes of ranks that skip what others use, as the tables of docs/missing-images.md.

    python tests/helpers/paths_page.py

Writes the section between its two marks, and leaves the rest as it is
(tests/helpers/paths, tests/odc_engine/trainers/test_paths.py).
"""

import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/missing-images.md"
BEGIN, END = "## Models, held against one process\n", "## A program to see it\n"
HEAD = """
*Stock* is FSDP2 of torch 2.13 over gloo, in processes of its own: **aborts**, **waits** (until its timeout), **wrong**
without an error (in brackets how far the worst gradient or logit is off), or **right**. *On demand* every row is right,
within 1e-6 of one process that has all the data. *Nothing moved* counts units beside the root of which a rank has
neither pulled nor pushed a byte, rank by rank: just those that its microbatches do not go through.

Models are transformers' own classes (5.23), tiny, with random weights in fp64, the tower trained and each of its blocks
a unit, as each layer of text. `python tests/helpers/paths_page.py` writes these tables anew, and a test holds them to
what it finds.
"""


def row(name: str, kind: Any, verdict: Any) -> str:
    own = getattr(kind.family, "tells", True)
    images = ", ".join(" + ".join(map(str, each)) for each in kind.images) if own else "as drawn"
    skipped = f"{', '.join(map(str, verdict.skipped))} of {verdict.units}"
    return f"| {name} | {images} | {verdict.stock} | {skipped} |"


def tables(verdicts: dict[str, Any]) -> str:
    from paths import ROOMS

    parts = [HEAD]
    for (title, of_ranks), kinds in ROOMS.items():
        rows = "\n".join(row(name, kind, verdicts[name]) for name, kind in kinds.items())
        parts.append(f"### {title}\n\n| model | {of_ranks} | stock | nothing moved |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def main() -> None:
    from paths import EVERY
    from paths.judged import judged
    from paths.stock import observed
    from pool import Pools

    pools, ended = Pools(), observed(EVERY)
    verdicts = {name: judged(pools, kind, ended[name]) for name, kind in EVERY.items()}
    pools.stop()
    for name, verdict in verdicts.items():
        if verdict.wrong:
            print(f"WRONG: {name}: {verdict.wrong}", file=sys.stderr)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + tables(verdicts) + "\n" + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
