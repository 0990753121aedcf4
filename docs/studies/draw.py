"""Draw a figure of these pages.

    odc_engine bandwidth --json > rates.json; python docs/studies/draw.py rates.json docs/images/bandwidth.png

The first picture of the README, of one minibatch of the demo, from two simulated timelines:

    of="--model r1-distill-qwen-1.5b --gpu a100 --devices 8 --minibatch 4 --max-tokens 65536 --minibatches 200"
    odcsim balance longalign --balancer lb-micro $of -o micro.jsonl
    odcsim balance longalign --balancer lb-mini $of -o mini.jsonl
    odcsim simulate micro.jsonl --gpu a100 --sync collective -o collective.npz
    odcsim simulate mini.jsonl --gpu a100 --sync on-demand -o on-demand.npz
    python docs/studies/draw.py collective.npz docs/images/one-minibatch.png --beside on-demand.npz --minibatch 158

Needs a Chromium, which makes the PNG of plotly's page.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from odcsim import plots, timeline

WIDTH = 1000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def bandwidth(report: dict[str, Any], path: Path) -> None:
    save(plots.bandwidth(report["rates"], report["hardware"]), path)


def convergence(curves: dict[str, list[float]], path: Path) -> None:
    save(plots.convergence(curves), path)


def minibatch(before: timeline.Timeline, after: timeline.Timeline, number: int, path: Path) -> None:
    """One minibatch under collectives and on demand, with idle time in one colour and the straggler pointed out."""
    figure = plots.pair(before, after, number)
    panels = zip(figure.layout.annotations, ("Collectives (FSDP)", "On-demand (ODC)"), strict=True)
    spans = [float(block.had[:, place].max()) for block, place in (t.block_of(number) for t in (before, after))]
    for note, name in panels:
        rest = note.text.partition(" + ")[2]
        words = f"<b>{name}</b>, balancer {rest.replace('idle', 'GPUs idle')} of the time"
        note.update(text=words, font={"size": 16, "color": "black"}, xshift=0)
    waits = [trace for trace in figure.data if trace.name.startswith("waiting")]
    for trace in figure.data:
        trace.y = [name.replace("device", "GPU") + " " for name in trace.y]
    for trace in waits:
        trace.update(name="idle: waits for the straggler", legendgroup="idle", showlegend=trace is waits[0])
        trace.update(marker={"color": "#FBE3D2", "line": {"color": "#D55E00", "width": 1}})
        trace.marker.pattern.update(shape="/", fgcolor="#D55E00", bgcolor="#FBE3D2")
    _straggler(figure)
    _saved(figure, *spans)
    words = f"the same {before.samples[number]} samples ({before.tokens[number]:,} tokens) above and below, simulated; "
    words += "waits in single layers are drawn together after each pass"
    figure.update_layout(
        title={"text": f"<b>One optimizer step on {before.about.devices} GPUs</b>", "subtitle": {"text": words}},
        title_x=0.055,
        xaxis2={"title": {"text": "seconds from the start of the step"}},
        font={"color": "#333333"},
    )
    save(figure, path)


def _straggler(figure: Any) -> None:
    """Names the longest backward pass under collectives."""
    above = next(trace for trace in figure.data if trace.name == "backward" and trace.xaxis == "x")
    longest = max(range(len(above.x)), key=lambda i: above.x[i])
    at = {"x": above.base[longest] + above.x[longest] / 2, "y": above.y[longest], "xref": "x", "yref": "y"}
    text = "the straggler: the longest sequence, so the others wait"
    figure.add_annotation(text=text, showarrow=False, font={"size": 13, "color": "white"}, **at)


def _saved(figure: Any, before: float, after: float) -> None:
    """Marks where both end, and what lies between."""
    box = {"x0": after, "x1": before, "y0": 0, "y1": 1, "xref": "x2", "yref": "y2 domain"}
    figure.add_shape(type="rect", fillcolor="#E6F4EA", line={"width": 0}, layer="below", **box)
    middle = {"x": (after + before) / 2, "y": 0.5, "xref": "x2", "yref": "y2 domain"}
    text = f"<b>{before - after:.1f} s saved</b><br>{before / after:.2f} times<br>as fast"
    figure.add_annotation(text=text, showarrow=False, font={"size": 15, "color": "#1B6B3A"}, **middle)


def save(figure: Any, path: Path) -> None:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"no browser to draw with: install one of {', '.join(BROWSERS)}")
    figure.update_layout(width=WIDTH, paper_bgcolor="white", plot_bgcolor="white")
    height = int(figure.layout.height)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        body = figure.to_html(full_html=False, include_plotlyjs=True, config={"displayModeBar": False})
        page.write_text(f"<html><body style='margin:0;background:white'>{body}</body></html>", encoding="utf-8")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--screenshot={path.resolve()}", f"--window-size={WIDTH},{height}", "--virtual-time-budget=9000"]
        subprocess.run([*command, page.as_uri()], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="what 'odc_engine bandwidth --json' printed, or a timeline")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument("--beside", type=Path, help="a timeline of the same samples on demand")
    parser.add_argument("--minibatch", type=int, default=0, help="which minibatch of both timelines to draw")
    args = parser.parse_args()
    if args.beside is None:
        bandwidth(json.loads(args.source.read_text()), args.picture)
    else:
        minibatch(timeline.read(args.source), timeline.read(args.beside), args.minibatch, args.picture)


if __name__ == "__main__":
    main()
