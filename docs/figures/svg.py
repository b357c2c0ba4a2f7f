"""What the scripts of this folder share: an SVG that is legible on light and on dark pages, without a network."""
from html import escape
from pathlib import Path

# Okabe and Ito's colours, which readers with any colour vision can tell apart; those of `lockstep report`.
STYLE = """
.paper{fill:#fdfdfb;stroke:#dedfdc}.ink{fill:#1c1d1f}.soft{fill:#62666d}.line{stroke:#c4c6c3;fill:none}
.faint{fill:#eeeeea}.c0{fill:#0072b2}.c1{fill:#d55e00}.c2{fill:#009e73}.c3{fill:#b3558f}.c4{fill:#c98500}.c5{fill:#3a9bd6}
.rest{fill:#b9bcc1}.on{fill:#fff}.dash{stroke-dasharray:4 4}
text{font-family:system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
.mono{font-family:ui-monospace,"SF Mono",Menlo,Consolas,monospace}.bold{font-weight:620}
@media(prefers-color-scheme:dark){.paper{fill:#14161a;stroke:#31353c}.ink{fill:#e7e7e3}.soft{fill:#9a9fa8}.line{stroke:#454a52}
.faint{fill:#22252b}.c0{fill:#56b4e9}.c1{fill:#ee8434}.c2{fill:#2cc295}.c3{fill:#dd92c0}.c4{fill:#e9b23c}.c5{fill:#8fd0f5}
.rest{fill:#4a4f58}.on{fill:#14161a}}
""".replace("\n", "")


class Figure:
    """An SVG of `width` by `height` units on a card. `says`: what it shows, for those who cannot see it."""

    def __init__(self, width, height, says):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                      f'height="{height}" role="img" aria-label="{escape(says)}"><title>{escape(says)}</title>'
                      f'<style>{STYLE}</style>'
                      f'<rect class="paper" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>']

    def text(self, x, y, text, style="ink", size=14, anchor="start"):
        self.parts.append(f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
                          f'{escape(text)}</text>')

    def box(self, x, y, width, height, style, says="", radius=2):
        title = f"<title>{escape(says)}</title>" if says else ""
        self.parts.append(f'<rect class="{style}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" '
                          f'rx="{radius}">{title}</rect>')

    def line(self, x1, y1, x2, y2, style="line", width=1):
        self.parts.append(f'<path class="{style}" stroke-width="{width}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')

    def axis(self, x, end, wanted, top, bottom, says):
        """Lines from `top` to `bottom` at about `wanted` round numbers up to `end`, which are at x(number), and what they are of."""
        tick = round_step(end, wanted)
        for number in range(int(end / tick) + 1):
            self.line(x(tick * number), top, x(tick * number), bottom, "line")
            self.text(x(tick * number), bottom + 17, f"{tick * number:g}", "soft", 12.5, "middle")
        self.text(x(end), bottom + 34, says, "soft", 12.5, "end")

    def key(self, y, entries):
        """What colours mean: (style, text) from left to right."""
        x = 20
        for style, text in entries:
            self.box(x, y, 12, 12, style)
            self.text(x + 18, y + 10.5, text, "soft", 13)
            x += 44 + 6.7 * len(text)

    def save(self, path):
        Path(path).write_text("\n".join(self.parts + ["</svg>"]) + "\n")


def round_step(length, wanted):
    """A round number (1, 2 or 5 times a power of ten) that goes about `wanted` times into `length`."""
    power = 10.0 ** -6
    while length / (10 * power) > wanted:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if length / (power * factor) <= wanted)
