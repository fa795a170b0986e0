"""A drawing in SVG that is read on white and on black, at the width of a page and of a phone; and the file that holds it."""

import sys
from html import escape

# What a class of lines or letters is drawn in: on white, on black.
COLOURS = {
    "ground": ("#ffffff", "#0d1117"),
    "text": ("#1f2328", "#e6edf3"),
    "quiet": ("#59636e", "#9198a1"),
    "grid": ("#d8dee4", "#30363d"),
    "ours": ("#0969da", "#4493f8"),
    "first": ("#bc4c00", "#f0883e"),
    "a": ("#1a7f37", "#3fb950"),
    "b": ("#8250df", "#ab7df8"),
    "c": ("#9a6700", "#d29922"),
    "d": ("#bf3989", "#db61a2"),
    "e": ("#59636e", "#9198a1"),
}


def style():
    def rules(shade):
        values = {name: both[shade] for name, both in COLOURS.items()}
        return "".join(f".{name}{{fill:{value}}}.s-{name}{{stroke:{value}}}" for name, value in values.items())

    fonts = "text{font:14px system-ui,sans-serif}.mono{font-family:ui-monospace,monospace}.bold{font-weight:600}"
    return f"<style>{fonts}{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}</style>"


class Drawing:
    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            style(),
            f'<rect width="{width}" height="{height}" rx="6" class="ground"/>',
        ]

    def text(self, x, y, words, classes="text", anchor="start", size=None):
        larger = f' style="font-size:{size}px"' if size else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}" text-anchor="{anchor}"{larger} xml:space="preserve">'
            f"{escape(words)}</text>"
        )

    def path(self, points, colour, width=1.0, more=""):
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.parts.append(f'<path d="M{line}" fill="none" class="s-{colour}" stroke-width="{width}"{more}/>')

    def box(self, x, y, width, height, colour, opacity=1.0):
        shown = f' opacity="{opacity}"' if opacity < 1 else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{colour}"{shown}/>'
        )

    def dot(self, x, y, colour, radius=4.0, letter=""):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{colour}"/>')
        if letter:
            self.text(x, y + 4, letter, "ground bold", "middle", 11)

    def svg(self):
        return "\n".join(self.parts) + "\n</svg>\n"


def main(path, svg):
    """Writes the file, or says by the exit code of `--check` whether it is this drawing."""
    if "--check" not in sys.argv[1:]:
        path.write_text(svg)
    return 0 if path.read_text() == svg else f"{path.name} is not what its script draws"
