"""Small multiples of lines over a logarithmic x axis, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.compare.chart import COLOURS, text

COLUMNS, MARGIN, HEAD, LEGEND = 3, 16, 64, 22
WIDTH, HEIGHT = 300, 230  # of a panel
LEFT, TOP, RIGHT, BOTTOM = 46, 28, 12, 40


@dataclass(frozen=True)
class Panel:
    """``lines``: name to (x, y) points, all positive; ``is_log`` is the y axis."""

    title: str
    x_title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    is_log: bool = True
    most: float | None = None


def svg(title: str, caption: str, panels: Sequence[Panel]) -> str:
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colour_of = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    columns = min(COLUMNS, len(panels))
    width = 2 * MARGIN + columns * WIDTH
    height = HEAD + LEGEND + math.ceil(len(panels) / columns) * HEIGHT
    parts = [text(MARGIN, 24, title, size=16, weight="bold")]
    parts.append(text(MARGIN, 42, caption, fill="#555555", size=11))
    x = float(MARGIN)
    for name in names:
        parts.append(line([(x, HEAD), (x + 18, HEAD)], colour_of[name]))
        parts.append(text(x + 24, HEAD + 4, name))
        x += 44 + 7 * len(name)
    for i, panel in enumerate(panels):
        left = MARGIN + i % columns * WIDTH
        parts.append(draw(panel, colour_of, left, HEAD + LEGEND + i // columns * HEIGHT))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="system-ui, sans-serif" '
            'font-size="12">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def draw(panel: Panel, colour_of: dict[str, str], left: float, top: float) -> str:
    points = [point for line_points in panel.lines.values() for point in line_points]
    low_x, high_x = (f(math.log(x) for x, _ in points) for f in (min, max))
    values = [y for _, y in points]
    high = panel.most or max(values)
    low = 10 ** math.floor(math.log10(min(values))) if panel.is_log else 0.0
    if panel.is_log:
        high = 10 ** math.ceil(math.log10(high))
    right, bottom = left + WIDTH - RIGHT, top + HEIGHT - BOTTOM

    def at_x(x: float) -> float:
        share = (math.log(x) - low_x) / ((high_x - low_x) or 1.0)
        return left + LEFT + share * (right - left - LEFT)

    def at_y(y: float) -> float:
        share = math.log(y / low) / math.log(high / low) if panel.is_log else y / high
        return bottom - share * (bottom - top - TOP)

    parts = [text(left + LEFT, top + 16, panel.title, weight="bold")]
    for y in ticks(low, high, panel.is_log):
        parts.append(line([(left + LEFT, at_y(y)), (right, at_y(y))], "#dddddd", 1))
        parts.append(text(left + LEFT - 6, at_y(y) + 4, f"{y:,.10g}", anchor="end", size=10))
    xs = sorted({x for x, _ in points})
    for x in xs[:: -(-len(xs) // 9)]:
        parts.append(text(at_x(x), bottom + 14, f"{x:,.10g}", anchor="middle", size=10))
    middle = (left + LEFT + right) / 2
    parts.append(text(middle, bottom + 28, panel.x_title, anchor="middle", fill="#555555", size=11))
    for name, line_points in panel.lines.items():
        parts.append(line([(at_x(x), at_y(y)) for x, y in line_points], colour_of[name]))
    return "\n".join(parts)


def ticks(low: float, high: float, is_log: bool) -> list[float]:
    if is_log:
        return [low * 10**i for i in range(round(math.log10(high / low)) + 1)]
    step = 10 ** math.floor(math.log10(high / 2))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) <= 5)
    return [step * i for i in range(int(high / step) + 1)]


def line(points: Sequence[tuple[float, float]], colour: str, width: float = 2) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
