"""Writes the Parquet files beside this one, which the reader of Parquet files is tested on.

    pip install pyarrow==26.0.1
    python make_parquet.py

numbers.parquet: every type of number, plain and by dictionary, row groups of 40 and 30 rows, checksums of pages, snappy, data
pages of version 1; numbers_v2.parquet: the same without compression, data pages of version 2. nulls.parquet: a null in row 5, in the second row group, and text.
Value i of each column follows from i, so that the test needs no second file.
"""

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
