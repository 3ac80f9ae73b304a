"""The picture: a panel per metric, a bar per peer and dtype, the machine's bound behind the bar."""

from __future__ import annotations

from html import escape

from benchmarks.compare.report import SHORT
from benchmarks.compare.summary import Cell, Metric, Summary

# Okabe and Ito's colours, told apart by every kind of eye; ours first.
COLOURS = ("#0072b2", "#e69f00", "#d55e00", "#cc79a7", "#009e73", "#56b4e9", "#000000", "#f0e442")
WIDTH, LABEL, VALUE, MARGIN = 860, 190, 150, 16
BAR, GAP, TITLE = 14, 5, 30
PLOT = WIDTH - LABEL - VALUE - 2 * MARGIN


def svg(summary: Summary, caption: str) -> str:
    """One picture of one model."""
    colour_of = {peer: COLOURS[i % len(COLOURS)] for i, peer in enumerate(summary.peers)}
    parts: list[str] = []
    top = 64
    for metric in summary.metrics:
        bars = panel_bars(summary, metric)
        parts.append(panel(metric, bars, colour_of, top))
        top += TITLE + len(bars) * (BAR + GAP) + 14
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" '
            f'width="{WIDTH}" height="{top}" font-family="system-ui, sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>',
            text(MARGIN, 24, summary.model, size=16, weight="bold"),
            text(MARGIN, 42, caption, fill="#555555", size=11),
            *parts,
            "</svg>",
            "",
        ]
    )


def panel_bars(summary: Summary, metric: Metric) -> list[tuple[str, str, Cell]]:
    """(peer, dtype, cell), best first."""
    found = [
        (peer, dtype, cell)
        for (key, dtype, peer), cell in summary.cells.items()
        if key == metric.key
    ]
    return sorted(found, key=lambda bar: -metric.sign * bar[2].median)


def panel(
    metric: Metric, bars: list[tuple[str, str, Cell]], colour_of: dict[str, str], top: int
) -> str:
    most = max(max(cell.spread[1], cell.bound or 0) for _, _, cell in bars)
    better = "more is better" if metric.sign > 0 else "less is better"
    parts = [text(MARGIN, top + 14, metric.title, weight="bold")]
    parts.append(text(WIDTH - MARGIN, top + 14, better, anchor="end", fill="#555555", size=11))
    left = MARGIN + LABEL
    for i, (peer, dtype, cell) in enumerate(bars):
        y = top + TITLE - 4 + i * (BAR + GAP)
        middle = y + BAR / 2
        parts.append(text(left - 8, middle + 4, f"{peer} {SHORT.get(dtype, dtype)}", anchor="end"))
        if cell.bound:
            parts.append(rect(left, y, PLOT * cell.bound / most, BAR, "#e8e8e8"))
        parts.append(rect(left, y, PLOT * cell.median / most, BAR, colour_of[peer]))
        low, high = (left + PLOT * value / most for value in cell.spread)
        if high > low:
            parts.append(
                f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 3:.1f}v6'
                f'M{high:.1f} {middle - 3:.1f}v6" stroke="#222222" fill="none"/>'
            )
        label = f"{cell.median:.3g}"
        if cell.share is not None:
            label += f" · {cell.share:.0%} of bound"
        parts.append(text(left + PLOT + 8, middle + 4, label))
    return "\n".join(parts)


def rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{fill}"/>'


def text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    fill: str = "#111111",
    size: int = 12,
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" '
        f'font-size="{size}" font-weight="{weight}">{escape(content)}</text>'
    )
