"""Photograph a page for the README, so that the picture is of the page as it is: `make screenshot`."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image

SHOWN = ("msp", "energy", "vim", "scod", "sirc(msp, l1)", "sirc(msp, residual)", "sirc(entropy, residual)")
SETTING = urlencode([("alpha", 0.7), ("beta", 0.5), *(("score", score) for score in SHOWN)])
LARGEST = 400_000  # bytes: it is loaded with every view of the README


def main() -> None:
    """Read the command line and write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python docs/screenshot.py sirc-demo/report.html docs/images/report.png"
    )
    parser.add_argument("report", type=Path, help="the page, an HTML file")
    parser.add_argument("out", type=Path, help="the picture, a PNG file")
    parser.add_argument("--width", type=int, default=1440, help="of the window, in CSS pixels (default: %(default)s)")
    parser.add_argument("--height", type=int, help="of the window; by default, the top of the page down to the plots")
    parser.add_argument("--setting", default=SETTING, help="what a link to the page has after its #")
    parser.add_argument("--dark", action="store_true", help="as readers with a dark screen see it")
    options = parser.parse_args()
    if not options.report.is_file():
        parser.error(f"{options.report} must be a page that `sirc report` or `sirc demo` wrote; there is no such file")
    picture = photograph(options.report, options.width, options.height, options.setting, dark=options.dark)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_bytes(picture)
    print(f"{options.out}: {len(picture) / 1000:.0f} kB")


def photograph(report: Path, width: int, height: int | None, setting: str, *, dark: bool) -> bytes:
    """Give a PNG of the top of a page, in as many colours as keep it small."""
    # The tests look for the same browser; the package itself needs none.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from support.browser import launched

    with launched() as browser:
        page = browser.new_page(
            viewport={"width": width, "height": height or 1000},
            device_scale_factor=1.5,
            color_scheme="dark" if dark else "light",
        )
        page.goto(f"{report.resolve().as_uri()}#{setting}")
        page.wait_for_selector("html[data-ready]", state="attached")
        if height is None:
            bottom = page.evaluate(
                """() => [...document.querySelectorAll(".plots > section")].filter((s) => s.checkVisibility())
                    .slice(0, 2).reduce((most, s) => Math.max(most, s.getBoundingClientRect().bottom), 0)"""
            )
            page.set_viewport_size({"width": width, "height": int(bottom) + 16})
        page.wait_for_timeout(500)  # plots follow the window a moment later
        shot = page.screenshot()
    return small(shot)


def small(shot: bytes) -> bytes:
    """Thin out the colours of a PNG until it is small enough; of 256 a screen shows few fewer."""
    with Image.open(io.BytesIO(shot)) as opened:
        full = opened.convert("RGB")
    for colours in (256, 128, 64, 32):
        out = io.BytesIO()
        # Rare colours count as much as common ones at first, so that no line loses its own; means then settle the rest.
        few = full.quantize(colours, method=Image.Quantize.MAXCOVERAGE, kmeans=5, dither=Image.Dither.NONE)
        few.save(out, "PNG", optimize=True)
        if out.tell() <= LARGEST:
            break
    return out.getvalue()


if __name__ == "__main__":
    main()
