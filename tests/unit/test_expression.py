"""Expressions over the index: what they mean, and that nothing else can be executed."""

from __future__ import annotations

import pandas as pd
import pytest

from fdamed.core.errors import FdamedError
from fdamed.data.manifest import as_index
from fdamed.data.splitting.expression import holds


@pytest.fixture
def index() -> pd.DataFrame:
    return as_index(
        pd.DataFrame(
            {
                "image": list("abcd"),
                "patient": list("abcd"),
                "study": list("abcd"),
                "race": ["Asian", "White", None, "Black"],
                "age": [30, 50, 70, None],
                "view": ["frontal", "lateral", "frontal", None],
                "burned_in": [True, False, None, None],
                "label.Lung Lesion": [1, 0, -1, None],
                "label.Edema": [0, 0, 0, 1],
            }
        )
    )


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("race == 'Asian'", "a"),
        ("race != 'Asian'", "bd"),
        ("not race == 'Asian'", "bcd"),
        ("race in ['Asian', 'Black']", "ad"),
        ("race not in ('Asian', 'Black')", "b"),
        ("isna(race) or isna(age)", "cd"),
        ("40 <= age < 71", "bc"),
        ("age >= 40 and view == 'frontal'", "c"),
        ("label['Lung Lesion'] == -1", "c"),
        ("any_label(1)", "ad"),
        ("not any_label(-1)", "abd"),
        ("burned_in", "a"),
        ("isna(label['Lung Lesion'])", "d"),
        ("True", "abcd"),
        ("label['Edema'] == label['Lung Lesion']", "b"),
    ],
)
def test_an_expression_keeps_the_rows_it_names(index: pd.DataFrame, text: str, rows: str) -> None:
    assert "".join(index["image"][holds(text, index, "split.where")]) == rows


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "race.__class__ == 1",
        "(lambda: 1)()",
        "[x for x in race]",
        "age + 1 > 3",
        "race",
        "age",
        "'Asian'",
        "open('x') == 1",
        "isna(age, race)",
        "isna('x')",
        "patient == 'a'",
        "image in ['a']",
        "race == 3",
        "age == 'x'",
        "age in ['x']",
        "1 == 1",
        "race is 'Asian'",
        "racce == 'Asian'",
        "label['Oedema'] == 1",
        "label[0] == 1",
        "age >",
        "",
        "age > 1; age",
        "a := 1",
        "f'{age}' == 1",
        "not " * 1500 + "True",
        "(" * 400 + "True" + ")" * 400,
        "age == b'1'",
        "age == None",
        "x" * 3000,
        "age\x00 > 1",
    ],
)
def test_anything_else_is_refused_with_the_key(index: pd.DataFrame, text: str) -> None:
    with pytest.raises(FdamedError) as error:
        holds(text, index, "split.where")
    assert error.value.where == "split.where"


def test_a_misspelled_name_gets_its_nearest(index: pd.DataFrame) -> None:
    with pytest.raises(FdamedError, match="did you mean `race`"):
        holds("rase == 'x'", index, "w")
    with pytest.raises(FdamedError, match="did you mean `Edema`"):
        holds("label['Oedema'] == 1", index, "w")
    with pytest.raises(FdamedError, match=r"a label: write label\['Edema'\]"):
        holds("Edema == 1", index, "w")
