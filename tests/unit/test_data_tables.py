"""Reading tables: exact cells or one clear error, never a shifted column."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdamed.core.errors import FdamedError
from fdamed.data.manifest import content_hash
from fdamed.data.row_reader import UNSAFE_PATH, Rejects
from fdamed.data.table_reader import read_table


def table(folder: Path, content: bytes, name: str = "t.csv") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def cells(frame: pd.DataFrame) -> list[list[str]]:
    return [list(row) for row in frame.itertuples(index=False, name=None)]


def test_ids_that_look_like_numbers_or_nothing_stay_what_they_are(tmp_path: Path) -> None:
    ids = ["00123", "123", "NA", "null", "1e3", "1000", "", "nan", " 7"]
    frame = read_table(table(tmp_path, ("id,x\n" + "".join(f"{i},0\n" for i in ids)).encode()))
    assert frame["id"].tolist() == ids
    assert frame.index.tolist() == list(range(2, 11))


def test_bom_crlf_quotes_and_gzip_are_read(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfa,b\r\n"1,""x""\n2",3\r\n'
    assert cells(read_table(table(tmp_path, content))) == [['1,"x"\n2', "3"]]
    assert cells(read_table(table(tmp_path, gzip.compress(content), "t.csv.gz"))) == [['1,"x"\n2', "3"]]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\xef\xbb\xbfid;age\r\n7;62,5\r\n", "t.csv"),
        (b'"id";"age"\n"7";"62,5"\n', "t.csv"),
        (b"id\tage\n7\t62,5\n", "t.csv"),
        (b'id,age\n7,"62,5"\n', "t.txt"),
    ],
)
def test_the_header_tells_the_separator_and_the_log_names_it(
    tmp_path: Path, content: bytes, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "fdamed"):
        frame = read_table(table(tmp_path, content, name), ["id", "age"])
    assert cells(frame) == [["7", "62,5"]]
    assert f"{name}: the columns are separated by" in caplog.text


def test_a_header_that_the_usual_separator_splits_is_split_by_it(tmp_path: Path) -> None:
    assert read_table(table(tmp_path, b"a;b;c,d\n1;2,3\n")).columns.tolist() == ["a;b;c", "d"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n3\n", "row 3 has 1 fields, the header has 2"),
        (b"a,b\n1,2,\n3,4,\n", "row 2 has 3 fields, the header has 2"),
        (b"a,b\n1,2\n3,4,5\n", "row 3 has 3 fields"),
        (b"a,b,a\n1,2,3\n", "columns 1, 3 of the first row share a name"),
        (b"a, a\n1,2\n", "columns 1, 2 of the first row share a name"),
        (b"a,b\n1,\xe4\n", "line 2 is not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "line 1 is not UTF-8"),
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b'a,b\n1,"2\n3,4\n', "never closed"),
    ],
)
def test_a_broken_table_is_one_error_with_its_row(tmp_path: Path, content: bytes, message: str) -> None:
    path = table(tmp_path, content)
    with pytest.raises(FdamedError) as error:
        read_table(path)
    assert message in error.value.what
    assert error.value.where == str(path)


def test_a_damaged_gzip_and_a_missing_table_say_so(tmp_path: Path) -> None:
    with pytest.raises(FdamedError, match="damaged gzip"):
        read_table(table(tmp_path, gzip.compress(b"a,b\n1,2\n" * 50)[:-12], "t.csv.gz"))
    with pytest.raises(FdamedError, match="no such table") as error:
        read_table(tmp_path / "t.csv.g")
    assert "t.csv.gz" in error.value.fix


def test_an_error_never_quotes_a_cell(tmp_path: Path) -> None:
    with pytest.raises(FdamedError) as error:
        read_table(table(tmp_path, b"a,b\nDoe^Jane,2,3\n"))
    assert "Doe" not in str(error.value)


def test_a_workbook_gives_the_same_cells_as_text(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["id", "n", "note"], ["007", 12, None], ["x", 1.5, "NA"]):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    assert cells(read_table(tmp_path / "t.xlsx")) == [["007", "12", ""], ["x", "1.5", "NA"]]
    with pytest.raises(FdamedError, match="cannot be read"):
        read_table(table(tmp_path, b"no workbook", "u.xlsx"))


CELL = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["00123", "NA", "1e3", '"', '""', ",", "\n", "\r\n", "\x00", "=1+1", "ä", " ", "\t", "'", "a\rb", "NULL", "-1.0"]
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), width=st.integers(1, 4), tsv=st.booleans(), end=st.sampled_from(["\n", "\r\n"]))
def test_a_generated_table_comes_back_as_it_was_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, width: int, tsv: bool, end: str
) -> None:
    header = [f"c{i}" for i in range(width)]
    rows = data.draw(st.lists(st.lists(CELL, min_size=width, max_size=width), max_size=6))
    fault = data.draw(st.sampled_from(["none", "none", "extra", "short", "extra in all", "duplicate"]))
    broken = [list(row) for row in rows]
    if fault == "duplicate":
        header = [*header, header[0]]
        broken = [[*row, "1"] for row in broken]
    elif broken and fault == "extra":
        broken[-1].append("1")
    elif broken and fault == "extra in all":
        broken = [[*row, "1"] for row in broken]
    elif broken and fault == "short" and width > 1:
        broken[0].pop()
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter="\t" if tsv else ",", lineterminator=end, quoting=csv.QUOTE_MINIMAL)
    writer.writerows([header, *broken])
    path = table(tmp_path_factory.mktemp("t"), out.getvalue().encode(), "t.tsv" if tsv else "t.csv")
    damaged = broken != rows or len(header) != width
    try:
        frame = read_table(path)
    except FdamedError:
        assert damaged
    else:
        assert not damaged
        assert cells(frame) == rows


@settings(max_examples=150, deadline=None, derandomize=True)
@given(content=st.binary(max_size=60) | st.text(alphabet='a,"\n\r\t', max_size=40).map(str.encode))
def test_any_bytes_are_a_table_or_one_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = table(tmp_path_factory.mktemp("t"), content)
    try:
        read_table(path)
    except FdamedError as error:
        assert error.where == str(path)


def test_no_cell_of_rejects_csv_can_start_a_formula() -> None:
    rejects = Rejects()
    rejects.add("=HYPERLINK(1)", 3, "BAD", '@x, "y"')
    rejects.add("-a", None, "BAD", "+1")
    lines = list(csv.reader(io.StringIO(rejects.as_csv())))
    assert lines[1:] == [["'=HYPERLINK(1)", "3", "BAD", '\'@x, "y"'], ["'-a", "", "BAD", "'+1"]]


def test_ordinary_paths_stay_inside() -> None:
    paths = pd.Series(["a/b.png", "a..b/c.png", "x/..y", ".hidden/z", "ä b/c.png", "a/./b.png"])
    assert not paths.str.contains(UNSAFE_PATH).any()


def test_the_content_hash_knows_content_and_not_order() -> None:
    frame = pd.DataFrame({"b": ["x", "ä", None], "a": np.array([1, np.nan, 0.1], dtype="float32")})
    frame["c"] = pd.array([True, None, False], dtype="boolean")
    frame["y"] = np.array([1, 0, 1], dtype="int8")
    rows = ["1.0\x1fx\x1fTrue\x1f1", "\x1fä\x1f\x1f0", "0.10000000149011612\x1f\x1fFalse\x1f1"]
    text = "a\x1eb\x1ec\x1ey" + "".join("\x1d" + row for row in sorted(rows))
    assert content_hash(frame) == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert content_hash(frame[::-1]) == content_hash(frame)
    assert content_hash(frame.assign(y=1)) != content_hash(frame)
