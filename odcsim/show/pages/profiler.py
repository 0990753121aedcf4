"""A timeline as traces of torch.profiler, one file for each device: what reads those reads these.

Holistic Trace Analysis (github.com/facebookresearch/HolisticTraceAnalysis) takes kernels for communication where their
names begin as NCCL's do, so gathers, pushes and meetings have such names here, one-sided ones too. As NCCL's do, they
last from when a device came to when it was served. Fixed costs of a microbatch are the host's: no kernel runs.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from odcsim.program import COMPUTE
from odcsim.results.slices import kind_of, view
from odcsim.show.pages.perfetto import TRACKS, Event, nanoseconds
from odcsim.support.outputs import check_new_folder, scratch, telling
from odcsim.timeline import Timeline

STREAM = 7  # the lowest that torch gives: of the compute lane; other lanes have those after it
MEETINGS = STREAM + len(TRACKS)  # waiting at a meeting of the compute lane has a stream of its own
HOST = 1
COPY = "Memcpy DtoD (publish)"


def write(timeline: Timeline, folder: Path | str, minibatches: Sequence[int]) -> int:
    """Make the folder, whole or not at all, with a file for each device; returns how many events there are."""
    folder = Path(folder)
    check_new_folder(folder)
    total = 0
    with telling(folder), scratch(f".{folder.name[:40]}.", folder.parent) as made:
        (draft := made / "draft").mkdir()
        for device in range(timeline.about.devices):
            every = list(events(timeline, minibatches, device))
            about = {"backend": "nccl", "rank": device, "world_size": timeline.about.devices}
            content = {"schemaVersion": 1, "distributedInfo": about, "traceEvents": every}
            text = json.dumps(content, allow_nan=False).encode()  # readers look for the space after "rank":
            (draft / f"device-{device}.json.gz").write_bytes(gzip.compress(text, mtime=0))
            total += len(every)
        draft.rename(folder)
    return total


def events(timeline: Timeline, minibatches: Sequence[int], device: int) -> Iterator[Event]:
    """Each minibatch is a step of the profiler, which begins where the one before it ended."""
    start, launches = 0, count(1)
    for number in minibatches:
        block, place = timeline.block_of(number)
        whole = (start, start + nanoseconds(float(block.had[:, place].max())))
        for category, track in (("user_annotation", HOST), ("gpu_user_annotation", STREAM)):
            yield _span(f"ProfilerStep#{number}", category, device, track, whole)
        ran = view(block, place, device)
        for i in ran.steps:
            step, times = ran.program.steps[i], (start + nanoseconds(ran.asked[i]), start + nanoseconds(ran.had[i]))
            if step.kind == "overhead" or times[1] <= times[0]:
                continue
            name = kind_of(ran.program, step)
            if step.kind in ("gather", "push", "meeting"):
                name = f"ncclDevKernel_{'collective' if step.meets else 'one_sided'}_{name}"
            name, category = (COPY, "gpu_memcpy") if name == "publish" else (name, "kernel")
            stream = MEETINGS if step.meets and step.lane == COMPUTE else STREAM + TRACKS[step.lane]
            what = {"correlation": next(launches)}
            if name == "optimizer":
                yield _span("Optimizer.step", "gpu_user_annotation", device, STREAM, times)
            yield _span("cudaLaunchKernel", "cuda_runtime", device, HOST, (times[0], times[0] + 1), what)
            yield _span(name, category, device, stream, times, {"device": device, "stream": stream, **what})
        start = whole[1]


def _span(
    name: str, category: str, device: int, track: int, times: tuple[int, int], args: Event | None = None
) -> Event:
    shown = {"ts": times[0] / 1000, "dur": (times[1] - times[0]) / 1000}
    return {"ph": "X", "cat": category, "name": name, "pid": device, "tid": track, **shown, "args": args or {}}
