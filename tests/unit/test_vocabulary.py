"""One parser each for sex, age, view, race and labels, for tables and DICOM headers alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fdamed.data.datasets.table import Table
from fdamed.data.dicom.header import read_header
from fdamed.data.ingestion import read_rows
from fdamed.data.row_reader import Rejects
from fdamed.data.vocabulary import (
    parse_age,
    parse_flag,
    parse_label,
    parse_race,
    parse_race_or_text,
    parse_sex,
    parse_view,
)
from tests.support.dicom_files import dataset, thorax, write
from tests.support.raw_trees import write_table


@pytest.mark.parametrize(
    ("text", "view", "projection"),
    [
        ("PA", "frontal", "PA"),
        ("ap", "frontal", "AP"),
        ("POSTEROANTERIOR", "frontal", "PA"),
        ("anteroposterior", "frontal", "AP"),
        ("AP_horizontal", "frontal", "AP"),
        ("AP LLD", "frontal", "AP"),
        ("postero-anterior", "frontal", "PA"),
        ("antero-posterior", "frontal", "AP"),
        ("Frontal", "frontal", None),
        ("LL", "lateral", "LL"),
        ("RL", "lateral", "RL"),
        ("LLAT", "lateral", "LL"),
        ("RLAT", "lateral", "RL"),
        ("LAT", "lateral", "LATERAL"),
        ("L", "lateral", "LATERAL"),
        ("LATERAL", "lateral", "LATERAL"),
        ("LARGE LATERAL", "lateral", "LATERAL"),
        ("left lateral", "lateral", "LL"),
        ("XTABLE LATERAL", "lateral", "LATERAL"),
        ("LPO", None, "LPO"),
        ("SWIMMERS", None, None),
        ("RIBS L", None, None),
        ("", None, None),
    ],
)
def test_a_view_is_read_in_all_its_spellings_or_missing(text: str, view: str | None, projection: str | None) -> None:
    assert parse_view(text) == (view, projection)


@pytest.mark.parametrize(
    ("text", "years"),
    [
        ("62", 62),
        ("62.0", 62),
        ("62,5", 62.5),
        ("062Y", 62),
        ("006M", 0.5),
        ("018M", 1.5),
        ("095Y", 90),
        ("120", 90),
        (" ", None),
    ],
)
def test_an_age_is_in_years_with_90_for_all_above(text: str, years: float | None) -> None:
    assert parse_age(text) == years


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        *((parse_age, text) for text in ("121Y", "148", "155", "-3", "1e1", "x")),
        *((parse_label, text) for text in ("2", "x", "0.5", "nan")),
        *((parse_sex, text) for text in ("Blue", "x", "1")),
        (parse_flag, "perhaps"),
    ],
)
def test_a_text_that_cannot_be_such_a_value_is_an_error(parser: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match="n"):
        parser(text)


@pytest.mark.parametrize(
    ("text", "value"), [("1.0", 1), ("1", 1), ("-1,0", -1), ("0", 0), (" ", None), ("Unknown", None)]
)
def test_a_label_is_1_0_minus_1_blank_or_unknown(text: str, value: float | None) -> None:
    assert parse_label(text) == value


@pytest.mark.parametrize(
    ("text", "sex"), [("Male", "M"), ("f", "F"), ("Unknown", None), ("O", None), ("Not Reported", None), ("", None)]
)
def test_a_sex_is_f_m_or_missing(text: str, sex: str | None) -> None:
    assert parse_sex(text) == sex


@pytest.mark.parametrize(
    ("text", "race"),
    [
        ("White, non-Hispanic", "White"),
        ("Black or African American", "Black"),
        ("Native Hawaiian or Other Pacific Islander", "Pacific Islander"),
        ("American Indian or Alaska Native", "Native American"),
        ("Native American, Hispanic", "Native American"),
        ("White or Caucasian", "White"),
        ("Asian, non-Hispanic", "Asian"),
        ("ASIAN - ASIAN INDIAN", "Asian"),
        ("WHITE - OTHER EUROPEAN", "White"),
        ("PORTUGUESE", "White"),
        ("SOUTH AMERICAN", "Hispanic/Latino"),
        ("HISPANIC/LATINO - CENTRAL AMERICAN", "Hispanic/Latino"),
        ("BLACK/CAPE VERDEAN", "Black"),
        ("MULTIPLE RACE/ETHNICITY", "Other"),
        ("UNABLE TO OBTAIN", None),
        ("Race and Ethnicity Unknown", None),
        ("Patient Refused", None),
        ("", None),
        ("Other, non-Hispanic", "Other"),
        ("Other, Hispanic", "Hispanic/Latino"),
        ("Black, Hispanic", "Black"),
        ("Not Reported", None),
    ],
)
def test_a_race_is_read_by_whole_words(text: str, race: str | None) -> None:
    assert parse_race(text) == race
    assert parse_race_or_text(text) in (race, text.strip())


@pytest.mark.parametrize(
    ("text", "race"),
    [
        ("white", "White"),
        ("Black or African American", "Black"),
        (" Maori ", "Maori"),
        ("Group 2", "Group 2"),
        ("", None),
        ("Unknown", None),
        ("patient declined", None),
        ("Not Hispanic", None),
    ],
)
def test_a_table_may_have_groups_of_its_own_beside_the_known_races(text: str, race: str | None) -> None:
    assert parse_race_or_text(text) == race


@pytest.mark.parametrize("view", ["LLAT", "LAT", "RLAT", "LEFT LATERAL", "AP_horizontal", "LAO", "SWIMMERS"])
@pytest.mark.parametrize("age", ["006M", "300D", "062Y", "62", ""])
def test_a_table_and_a_header_agree_about_the_same_words(tmp_path: Path, view: str, age: str) -> None:
    header = read_header(write(tmp_path / "a", dataset(thorax(), ViewPosition=view, PatientAge=age, PatientSex="M")))
    write_table(
        tmp_path / "t.csv", ["image", "who", "view", "age", "sex", "y"], [["a.png", "1", view, age, "Male", "1"]]
    )
    columns = {"image": "image", "patient": "who", "projection": "view", "age": "age", "sex": "sex"}
    known = {"layout": "table", "root": str(tmp_path), "table": "t.csv", "columns": columns, "labels": {"y": "y"}}
    found = read_rows(Table.model_validate(known), "s", Rejects()).iloc[0]
    assert found["sex"] == header["sex"] == "M"
    assert parse_view(found["projection"]) == (header["view"], header["projection"])
    assert (found["age"] == pytest.approx(header["age"])) if header["age"] is not None else np.isnan(found["age"])
