"""A table of results: printed for people, written as JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a part found. Cells are numbers, not text: format only when printing."""

    part: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    verdicts: Sequence[str] = field(default=())
    """One sentence per claim of the part, with the number."""

    def as_dict(self) -> dict[str, object]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"part": self.part, "title": self.title, "rows": rows, "verdicts": list(self.verdicts)}

    def as_text(self) -> str:
        cells = [list(self.columns), *([_text(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        numeric = [all(not isinstance(row[i], str) for row in self.rows) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric, strict=True)
            ).rstrip()
            for row in cells
        ]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, lines[0], rule, *lines[1:], *self.verdicts])


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.1f}" if abs(cell) >= 100 else f"{cell:.2f}" if abs(cell) >= 10 else f"{cell:.3f}"
    return str(cell)
