"""Draw a figure of these pages.

    odc_engine bandwidth --json > rates.json; python docs/studies/draw.py rates.json docs/images/bandwidth.png

Needs a Chromium, which makes the PNG of plotly's page.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from odcsim import plots

WIDTH = 1000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def bandwidth(report: dict[str, Any], path: Path) -> None:
    save(plots.bandwidth(report["rates"], report["hardware"]), path)


def convergence(curves: dict[str, list[float]], path: Path) -> None:
    save(plots.convergence(curves), path)


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
    parser.add_argument("rates", type=Path, help="what 'odc_engine bandwidth --json' printed")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    args = parser.parse_args()
    bandwidth(json.loads(args.rates.read_text()), args.picture)


if __name__ == "__main__":
    main()
