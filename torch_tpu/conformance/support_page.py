"""The support matrix as one page without other files, which people filter in a browser.

`support_page.html` is the page; the data goes into it as text that its script reads: one line a row, fields separated by
tabs, reasons as numbers of a list.
"""

from __future__ import annotations

import json
from pathlib import Path

from torch_tpu.conformance.catalog import MATRIX_PHASES
from torch_tpu.conformance.matrix import COLUMNS, STATUSES, Matrix, name_of

TEMPLATE = Path(__file__).with_name("support_page.html")
_PLACE = "/*DATA*/null"


def as_html(matrix: Matrix) -> str:
    """The page of a matrix."""
    template = TEMPLATE.read_text(encoding="utf-8")
    before, found, after = template.partition(_PLACE)
    assert found, f"{TEMPLATE} has no place for the data"
    return before + _data(matrix) + after


def _data(matrix: Matrix) -> str:
    """A JavaScript object; no text in it can end the script."""
    texts: dict[str, int] = {}
    rows = []
    for row in matrix.rows:
        reasons = {
            str(index): texts.setdefault(row.reasons[name_of(column)], len(texts))
            for index, column in enumerate(COLUMNS)
            if name_of(column) in row.reasons
        }
        rows.append("\t".join([row.op, row.dtype, row.cells, json.dumps(reasons) if reasons else ""]))
    data = {
        "versions": dict(matrix.versions),
        "statuses": STATUSES,
        "phases": MATRIX_PHASES,
        "columns": COLUMNS,
        "reasons": list(texts),
        "rows": "\n".join(rows),
        "lowerings": "\n".join("\t".join([name, " ".join(ops)]) for name, ops in matrix.lowerings.items()),
    }
    return json.dumps(data).replace("<", "\\u003c")
