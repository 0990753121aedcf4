"""One finding of `odc_engine doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    area: str  # machine, package, ability, link, network, memory, environment, backend or selftest
    name: str
    found: str
    ok: bool
    advice: str = ""  # the way out where it is not ok
