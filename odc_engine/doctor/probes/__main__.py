"""One probe, in this process: `python -m odc_engine.doctor.probes MODULE [FILE]`. It answers into the file, else to
stdout."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from odc_engine.doctor.probes.base import PROBES, answer


def main(arguments: list[str]) -> int:
    if not arguments:
        print("usage: python -m odc_engine.doctor.probes MODULE [FILE], of the modules", file=sys.stderr)
        print(*(f"  {probe.module:<33} {probe.asks}" for probe in PROBES), sep="\n", file=sys.stderr)
        return 2
    text = json.dumps(asdict(answer(arguments[0])))
    if len(arguments) > 1:
        Path(arguments[1]).write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
