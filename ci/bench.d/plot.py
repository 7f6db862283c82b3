# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A plot without a library: horizontal bars on a logarithmic scale, readable on light and on dark
paper.
"""

import math
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, BAR, GAP, HEAD = 860, 230, 130, 16, 4, 34
STYLE = """
text { font: 12px sans-serif; fill: #222 } .title { font-weight: bold; font-size: 14px } .tick { fill: #666; font-size: 11px }
.grid { stroke: #888; stroke-opacity: .3 } .range { stroke: #222; stroke-width: 1.5 }
.native { fill: #888 } .peer { fill: #6a9fd4 } .ours { fill: #d9822b }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .tick { fill: #aaa } .range { stroke: #eee } .peer { fill: #4a7fb5 } .ours { fill: #e0903c } }
"""


def bars(panels, caption):
    """`panels`: [(title, [(label, kind, {median, min, max}, text)])]. The scale is the same in all."""
    values = [
        v
        for _, rows in panels
        for _, _, value, _ in rows
        for v in (value["min"], value["max"])
        if v > 0
    ]
    low, high = min(0.5, *values), max(values)
    first, last = math.log10(low), math.log10(high)

    def x(value):
        return LEFT + (math.log10(max(value, low)) - first) / (last - first) * (
            WIDTH - LEFT - RIGHT
        )

    out, y = [], 28
    out.append(f'<text x="8" y="18">{escape(caption)}</text>')
    for title, rows in panels:
        bottom = y + HEAD + len(rows) * (BAR + GAP)
        out.append(f'<text class="title" x="8" y="{y + 20}">{escape(title)}</text>')
        for power in range(math.ceil(first), math.floor(last) + 1):
            at = x(10**power)
            out.append(
                f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{y + HEAD - 6}" y2="{bottom}"/>'
            )
            out.append(
                f'<text class="tick" x="{at:.1f}" y="{y + HEAD - 10}" text-anchor="middle">{10**power:g}</text>'
            )
        y += HEAD
        for label, kind, value, said in rows:
            middle, end = y + BAR / 2, x(value["median"])
            out.append(
                f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(label)}</text>'
            )
            out.append(
                f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{max(end - LEFT, 1):.1f}" height="{BAR}"/>'
            )
            out.append(
                f'<line class="range" x1="{x(value["min"]):.1f}" x2="{x(value["max"]):.1f}" y1="{middle}" y2="{middle}"/>'
            )
            out.append(
                f'<text x="{max(end, x(value["max"])) + 6:.1f}" y="{middle + 4}">{escape(said)}</text>'
            )
            y += BAR + GAP
        y += 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(out) + "\n</svg>\n"
    )
