"""Conditions on the rows of the index, such as `race == 'Asian' and age >= 40`: an allow-list, never executed.

Known: columns of the row contract by name, `label['Lung Lesion']`, numbers, texts, lists of them, the comparisons
`== != < <= > >= in not in`, `and or not`, `isna(column)`, `any_label(value)` (some label of the row has this value).
A comparison with a missing value does not hold, `!=` included: ask `isna(column)` for those.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from fdamed.core.errors import FdamedError
from fdamed.data.manifest import COLUMNS, LABEL, label_columns

LONGEST = 2000
HIDDEN = ("image", "patient", "study")
"""Identifiers: no expression may single out a person."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]

ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def holds(text: str, frame: pd.DataFrame, where: str) -> Mask:
    """For each row, whether the expression holds; `where` names the key of the configuration in messages."""
    if len(text) > LONGEST:
        raise FdamedError(
            f"the expression is longer than {LONGEST} characters", where, "Use several columns or clients."
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _mask(tree, frame, where)
    except (SyntaxError, ValueError):
        raise FdamedError(f"`{text[:200]}` is no expression", where, _FIX) from None
    except (RecursionError, MemoryError):
        raise FdamedError("the expression is nested too deeply", where, _FIX) from None


_FIX = "Write for instance \"view == 'frontal' and age >= 40\"; columns: " + ", ".join(
    c for c in COLUMNS if c not in HIDDEN
)


def _mask(node: ast.expr, frame: pd.DataFrame, where: str) -> Mask:
    if isinstance(node, ast.BoolOp):
        masks = [_mask(v, frame, where) for v in node.values]
        joined = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return np.asarray(joined.reduce(masks), dtype=bool)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_mask(node.operand, frame, where)
    if isinstance(node, ast.Compare):
        terms = [node.left, *node.comparators]
        out = np.ones(len(frame), dtype=bool)
        for left, op, right in zip(terms, node.ops, terms[1:], strict=False):
            out &= _compared(left, op, right, frame, where)
        return out
    if isinstance(node, ast.Call):
        return _called(node, frame, where)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return np.full(len(frame), node.value)
    if isinstance(node, ast.Name) and node.id == "burned_in":
        return frame["burned_in"].fillna(False).to_numpy(dtype=bool)
    raise _not_allowed(node, where)


def _called(node: ast.Call, frame: pd.DataFrame, where: str) -> Mask:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if node.keywords or len(node.args) != 1 or name not in ("isna", "any_label"):
        raise _not_allowed(node, where)
    if name == "isna":
        column = _column(node.args[0], frame, where)
        if column is None:
            raise _not_allowed(node, where)
        return column.isna().to_numpy(dtype=bool)
    value = _constant(node.args[0], where)
    return (frame[label_columns(frame)] == value).any(axis=1).to_numpy(dtype=bool)


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr, frame: pd.DataFrame, where: str) -> Mask:
    column, other = _column(left, frame, where), _column(right, frame, where)
    if isinstance(op, ast.In | ast.NotIn):
        if column is None or not isinstance(right, ast.List | ast.Tuple | ast.Set):
            raise _not_allowed(left, where)
        values = [_constant(v, where) for v in right.elts]
        for value in values:
            _check_types(column, value, where)
        inside = column.isin(values).to_numpy(dtype=bool)
        return inside if isinstance(op, ast.In) else ~inside & column.notna().to_numpy(dtype=bool)
    if type(op) not in ORDER or (column is None and other is None):
        raise _not_allowed(left, where)
    a = column if column is not None else _constant(left, where)
    b = other if other is not None else _constant(right, where)
    for one, two in ((column, b), (other, a)):
        if one is not None:
            _check_types(one, two, where)
    there = np.ones(len(frame), dtype=bool)
    for side in (column, other):
        if side is not None:
            there &= side.notna().to_numpy(dtype=bool)
    result = pd.Series(ORDER[type(op)](a, b)).astype("boolean").fillna(False).to_numpy(dtype=bool)
    return result & there


def _check_types(column: pd.Series, other: Any, where: str) -> None:
    numeric = pd.api.types.is_numeric_dtype(column)
    given = pd.api.types.is_numeric_dtype(other) if isinstance(other, pd.Series) else not isinstance(other, str)
    if numeric != given:
        kind = "numbers" if numeric else "text"
        raise FdamedError(f"`{column.name}` holds {kind} and is compared with something else", where, _FIX)


def _column(node: ast.expr, frame: pd.DataFrame, where: str) -> pd.Series | None:
    if isinstance(node, ast.Name):
        if node.id in COLUMNS and node.id not in HIDDEN:
            return frame[node.id]
        known = [c for c in COLUMNS if c not in HIDDEN]
        near = difflib.get_close_matches(node.id, known, n=1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise FdamedError(f"unknown column `{node.id}`{hint}", where, _FIX)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "label":
        name = _constant(node.slice, where)
        labels = [c.removeprefix(LABEL) for c in label_columns(frame)]
        if name not in labels:
            near = difflib.get_close_matches(str(name), labels, n=1)
            hint = f" (nearest: {near[0]})" if near else ""
            raise FdamedError(f"unknown label `{name}`{hint}", where, f"The labels are: {', '.join(labels)}.")
        return frame[LABEL + str(name)]
    return None


def _constant(node: ast.expr, where: str) -> str | float | int:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _constant(node.operand, where)
        if isinstance(value, int | float):
            return -value
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return node.value
    raise _not_allowed(node, where)


def _not_allowed(node: ast.AST, where: str) -> FdamedError:
    return FdamedError(f"the expression uses {type(node).__name__} in a way that is not allowed", where, _FIX)
