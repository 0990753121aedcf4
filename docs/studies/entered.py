"""How many functions and files of odcsim one comparison of two minibatches enters, after all is imported.

python docs/studies/entered.py [--list]
"""

import argparse
import contextlib
import io
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import odcsim
from odcsim.cli import main

HOUSE = str(Path(odcsim.__file__).parent)
ASKED = (
    "compare longalign --model r1-distill-qwen-1.5b --gpu a100 --devices 8 --minibatch 4 --max-tokens 64k "
    "--minibatches 2"
).split()


def entered() -> Counter[tuple[str, str]]:
    """Calls of each function, by its file and name."""
    found: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HOUSE) and not code.co_name.startswith("<"):
            found[code.co_filename[len(HOUSE) + 1 :], code.co_qualname] += 1

    with contextlib.redirect_stdout(io.StringIO()):
        main(ASKED)  # what imports, and what is remembered
        sys.setprofile(note)
        try:
            main(ASKED)
        finally:
            sys.setprofile(None)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also print the functions of each file")
    args = parser.parse_args()
    found = entered()
    files = Counter(file for file, _ in found)
    if args.list:
        for file, count in files.most_common():
            print(f"{count:>4}  {file}: {', '.join(sorted(name for of, name in found if of == file))}")
    print(f"{len(found)} functions in {len(files)} files, {sum(found.values()):,} calls")
