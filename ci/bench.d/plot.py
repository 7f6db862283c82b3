# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Plots horizontal bars on a logarithmic scale as SVG, for light and dark backgrounds."""

import math
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, BAR, GAP, HEAD = 860, 230, 130, 16, 4, 34
STYLE = """
text { font: 12px sans-serif; fill: #222 } .title { font-weight: bold; font-size: 14px }
.tick { fill: #666; font-size: 11px } .grid { stroke: #888; stroke-opacity: .3 }
.range { stroke: #222; stroke-width: 1.5 }
.native { fill: #888 } .peer { fill: #6a9fd4 } .ours { fill: #d9822b }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .tick { fill: #aaa } .range { stroke: #eee }
.peer { fill: #4a7fb5 } .ours { fill: #e0903c } }
"""


def element(tag, body=None, **attributes):
    """Returns an SVG element. Numbers have one decimal place, and `kind` is its class."""
    words = [tag]
    for name, value in attributes.items():
        name = {"kind": "class", "anchor": "text-anchor"}.get(name, name)
        words.append(f'{name}="{value:.1f}"' if isinstance(value, float) else f'{name}="{value}"')
    return f"<{' '.join(words)}/>" if body is None else f"<{' '.join(words)}>{escape(body)}</{tag}>"


def bars(panels, caption):
    """Returns the image. `panels` is [(title, [(label, kind, {median, min, max}, text)])]. All
    panels have the same scale.
    """
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

    out, y = [element("text", caption, x=8, y=18)], 28
    for title, rows in panels:
        top, bottom = y + HEAD - 6, y + HEAD + len(rows) * (BAR + GAP)
        out.append(element("text", title, kind="title", x=8, y=y + 20))
        for power in range(math.ceil(first), math.floor(last) + 1):
            at, tick = x(10**power), f"{10**power:g}"
            out.append(element("line", kind="grid", x1=at, x2=at, y1=top, y2=bottom))
            out.append(element("text", tick, kind="tick", x=at, y=top - 4, anchor="middle"))
        y += HEAD
        for label, kind, value, said in rows:
            middle, end = y + BAR / 2, x(value["median"])
            low_end, high_end = x(value["min"]), x(value["max"])
            width = max(end - LEFT, 1.0)
            out.append(element("text", label, x=LEFT - 8, y=middle + 4, anchor="end"))
            out.append(element("rect", kind=kind, x=LEFT, y=y, width=width, height=BAR))
            out.append(element("line", kind="range", x1=low_end, x2=high_end, y1=middle, y2=middle))
            out.append(element("text", said, x=max(end, high_end) + 6, y=middle + 4))
            y += BAR + GAP
        y += 8
    size = f'viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<style>{STYLE}</style>",
            *out,
            "</svg>\n",
        ]
    )
