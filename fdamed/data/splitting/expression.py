"""Conditions on the rows of the index, such as `race == 'Asian' and age >= 40`: an allow-list, never executed.

Known: columns of the row contract by name, `label['Lung Lesion']`, numbers, texts, lists of them, the comparisons
`== != < <= > >= in not in`, `and or not`, `isna(column)`, `any_label(value)` (some label of the row has this value).
A comparison with a missing value does not hold, `!=` included: ask `isna(column)` for those.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.core.errors import FdamedError, nearest
from fdamed.data.manifest import COLUMNS, LABEL, label_columns

HIDDEN = ("image", "patient", "study")
"""Identifiers: no expression may single out a person."""
KNOWN = [c for c in COLUMNS if c not in HIDDEN]
FIX = f"Write for instance \"view == 'frontal' and age >= 40\"; columns: {', '.join(KNOWN)}"
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda column, values: column.isin(values),
    ast.NotIn: lambda column, values: ~column.isin(values),
}


def holds(text: str, frame: pd.DataFrame, where: str) -> NDArray[np.bool_]:
    """For each row, whether the expression holds; `where` names the key of the configuration in messages."""
    try:
        return np.asarray(_mask(ast.parse(text.strip(), mode="eval").body, frame, where), dtype=bool)
    except (SyntaxError, ValueError):
        raise FdamedError(f"`{text[:200]}` is no expression", where, FIX) from None
    except (RecursionError, MemoryError):
        raise FdamedError("the expression is nested too deeply", where, FIX) from None


def _mask(node: ast.expr, frame: pd.DataFrame, where: str) -> Any:
    match node:
        case ast.BoolOp(op, values):
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return join.reduce([_mask(v, frame, where) for v in values])
        case ast.UnaryOp(ast.Not(), operand):
            return ~_mask(operand, frame, where)
        case ast.Compare(left, ops, rights):
            triples = zip([left, *rights], ops, rights, strict=False)
            return np.logical_and.reduce([_compared(*triple, frame, where) for triple in triples])
        case ast.Call(ast.Name("isna"), [argument], []):
            column = _operand(argument, frame, where)
            if isinstance(column, pd.Series):
                return column.isna().to_numpy(dtype=bool)
        case ast.Call(ast.Name("any_label"), [argument], []):
            value = _operand(argument, frame, where)
            if isinstance(value, int | float):
                return (frame[label_columns(frame)] == value).any(axis=1).to_numpy(dtype=bool)
        case ast.Constant(bool(value)):
            return np.full(len(frame), value)
        case ast.Name("burned_in"):
            return frame["burned_in"].fillna(False).to_numpy(dtype=bool)
    raise _not_allowed(node, where)


def _compared(
    left: ast.expr, comparison: ast.cmpop, right: ast.expr, frame: pd.DataFrame, where: str
) -> NDArray[np.bool_]:
    a = _operand(left, frame, where)
    if isinstance(comparison, ast.In | ast.NotIn):
        if not isinstance(a, pd.Series) or not isinstance(right, ast.List | ast.Tuple | ast.Set):
            raise _not_allowed(left, where)
        b: Any = [_operand(v, frame, where) for v in right.elts]
        operands = [a, *b]
    else:
        b = _operand(right, frame, where)
        operands = [a, b]
    columns = [o for o in operands if isinstance(o, pd.Series)]
    if type(comparison) not in COMPARISONS or not columns:
        raise _not_allowed(left, where)
    if len({_numeric(o) for o in operands}) > 1:
        kind = "numbers" if _numeric(columns[0]) else "text"
        raise FdamedError(f"`{columns[0].name}` holds {kind} and is compared with something else", where, FIX)
    found = pd.Series(COMPARISONS[type(comparison)](a, b)).astype("boolean").fillna(False).to_numpy(dtype=bool)
    return np.asarray(found & np.all([c.notna() for c in columns], axis=0))


def _numeric(operand: Any) -> bool:
    return pd.api.types.is_numeric_dtype(operand) if isinstance(operand, pd.Series) else not isinstance(operand, str)


def _operand(node: ast.expr, frame: pd.DataFrame, where: str) -> pd.Series | str | float:
    """A column of the index, or a constant."""
    match node:
        case ast.Name(name):
            if name in KNOWN:
                return frame[name]
            label = f" (a label: write label[{name!r}])" if LABEL + name in frame else nearest(name, KNOWN)
            raise FdamedError(f"unknown column `{name}`{label}", where, FIX)
        case ast.Subscript(ast.Name("label"), ast.Constant(value)):
            labels = [c.removeprefix(LABEL) for c in label_columns(frame)]
            if value in labels:
                return frame[LABEL + str(value)]
            what = f"unknown label `{value!r}`{nearest(str(value), labels)}"
            raise FdamedError(what, where, f"The labels are: {', '.join(labels)}.")
        case ast.UnaryOp(ast.USub(), ast.Constant(int(value) | float(value))):
            return -value
        case ast.Constant(str(value) | int(value) | float(value)):
            return value
    raise _not_allowed(node, where)


def _not_allowed(node: ast.AST, where: str) -> FdamedError:
    return FdamedError(f"the expression uses {type(node).__name__} in a way that is not allowed", where, FIX)
