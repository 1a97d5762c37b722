"""A small atlas."""

from __future__ import annotations

CELLS = [
    {
        "data": "images",
        "regime": "false negatives",
        "dose": dose,
        "level": level,
        "row": row,
        "objective": objective,
        "spec": f"{objective}:t=0.2",
        "versus": "InfoNCE",
        "n": 20,
        "difference": difference,
        "low": difference - 1,
        "high": difference + 1,
        "effect": effect,
        "recovered": None,
        "edges": ["prior"] if row == "HCL" else [],
    }
    for dose, level, row, objective, difference, effect in (
        ("4 classes", 0.25, "oracle", "infonce", 3.0, "helps"),
        ("4 classes", 0.25, "DCL", "dcl", -2.0, "hurts"),
        ("4 classes", 0.25, "HCL", "hcl", 0.1, "cannot tell"),
        ("10 classes", 0.1, "DCL", "dcl", 0.0, "does nothing"),
        ("10 classes", 0.1, "HCL", "hcl", 1.2, "helps"),
    )
]
