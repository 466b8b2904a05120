"""Writes the Parquet files beside this one, which the reader of Parquet files is tested on.

    pip install pyarrow==26.0.1
    python make_parquet.py

numbers.parquet: every type of number, plain and by dictionary, row groups of 40 and 30 rows, checksums of pages, snappy, data
pages of version 1; numbers_v2.parquet: the same without compression, data pages of version 2. nulls.parquet: a null in row 5, in the second row group, and text.
Value i of each column follows from i, so that the test needs no second file.

texts.parquet: texts, names, numbers and names of classes, by dictionaries and with snappy, row groups of 20 and 10 rows, checksums of pages;
texts_plain.parquet: the same plain, without compression, data pages of version 2; texts.csv: the same as Python's csv writes it.
texts_nulls.parquet and texts_nulls.csv: with a null text in row 5, a null name in row 7 and a null number in row 8, row groups of 4 rows.
texts_delta.parquet: texts in an encoding that is refused; texts_bytes.parquet: bytes that are no UTF-8, in row 2.
kinds.parquet: a text with a null, a flag with a null, a time, a decimal and a list.
index.parquet: two features, a label and two columns of an index behind them, as `DataFrame.to_parquet` of pandas writes an index of two levels.
"""

import csv
import decimal
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).parent
ROWS = 70
COLUMNS = {
    "flag": pa.array([i % 3 == 0 for i in range(ROWS)], pa.bool_()),
    "byte": pa.array([i - 35 for i in range(ROWS)], pa.int8()),
    "short": pa.array([65535 - i for i in range(ROWS)], pa.uint16()),
    "int": pa.array([(i - 30) * 1000 for i in range(ROWS)], pa.int32()),
    "uint": pa.array([2**32 - 256 * (i + 1) for i in range(ROWS)], pa.uint32()),
    "long": pa.array([(i - 3) * 2**33 for i in range(ROWS)], pa.int64()),
    "float": pa.array([i / 7 for i in range(ROWS)], pa.float32()),
    "double": pa.array([i / 4 - 9 for i in range(ROWS)], pa.float64()),
    "few": pa.array([0.5 * (i % 5) for i in range(ROWS)], pa.float32()),
    "label": pa.array([i % 4 for i in range(ROWS)], pa.int64()),
}


def write(name, columns, rows, **options):
    options = dict(
        compression="snappy", use_dictionary=["few", "label"], write_page_checksum=True, store_schema=False
    ) | options
    pq.write_table(pa.table(columns), FOLDER / name, row_group_size=rows, **options)


write("numbers.parquet", COLUMNS, 40)
write("numbers_v2.parquet", COLUMNS, 40, data_page_version="2.0", compression="none")
nulls = {"x": [float(i) if i != 5 else None for i in range(8)], "text": list("abcdefgh"), "label": list(range(8))}
write("nulls.parquet", nulls, 4, use_dictionary=False)

TEXTS = ["Grün, \"sehr\" schön", "two\nlines", "plain", "it's 5\" wide", "日本語 テキスト", "  spaces  "]
CITIES = ["Oslo", "Córdoba", "7", "7.0", "São Paulo"]
MANY = 30
TABLE = {
    "review": pa.array([f"{TEXTS[i % 6]} {i % 4}" for i in range(MANY)]),
    "city": pa.array([CITIES[i * i % 5] for i in range(MANY)]),
    "shop": pa.array([i % 7 for i in range(MANY)], pa.int32()),
    "price": pa.array([i / 7 - 2 for i in range(MANY)], pa.float64()),
    "size": pa.array([i / 3 for i in range(MANY)], pa.float32()),
    "kind": pa.array([["cat", "dog", "axolotl"][i % 3] for i in range(MANY)]),
}


def write_csv(name, columns):
    with open(FOLDER / name, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(column.to_pylist() for column in columns.values())))


def with_nulls(columns, rows):
    values = {name: column.to_pylist()[:9] for name, column in columns.items()}
    for name, row in rows.items():
        values[name][row] = None
    return {name: pa.array(column, columns[name].type) for name, column in values.items()}


write("texts.parquet", TABLE, 20, use_dictionary=True)
write("texts_plain.parquet", TABLE, 20, use_dictionary=False, data_page_version="2.0", compression="none")
write_csv("texts.csv", TABLE)
nulls = with_nulls(TABLE, {"review": 5, "city": 7, "price": 8})
write("texts_nulls.parquet", nulls, 4, use_dictionary=["city"])
write_csv("texts_nulls.csv", nulls)
few = {"review": pa.array(["one", "one more", "one more time"]), "kind": pa.array([0, 1, 0])}
write("texts_delta.parquet", few, 4, use_dictionary=False, column_encoding={"review": "DELTA_BYTE_ARRAY"})
few["review"] = pa.array([b"one", b"two", b"\xff"], pa.binary())
write("texts_bytes.parquet", few, 4)
index = {"a": [0.5, 1.5, 2.5], "b": [3.0, 4.0, 5.0], "label": [2, 0, 1], "__index_level_0__": [7, 9, 8], "__index_level_1__": [1, 1, 2]}
write("index.parquet", index, 4, use_dictionary=False)

KINDS = {
    "name": pa.array(["Ann", None, "Zoë"]),
    "flag": pa.array([True, None, False]),
    "size": pa.array([0.5, 1e-5, 3.0]),
    "when": pa.array([0, 1, 2], pa.timestamp("ms")),
    "price": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("2.50")], pa.decimal128(9, 2)),
    "tags": pa.array([["a"], [], ["b", "c"]]),
}
write("kinds.parquet", KINDS, 2)
