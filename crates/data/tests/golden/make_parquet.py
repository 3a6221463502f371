"""Writes the Parquet fixtures of `tests/data/parquet.rs`. Needs pyarrow; run it in this folder."""

import pyarrow as pa
import pyarrow.parquet as pq

messages = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))

# Conversations, over two row groups, with a dictionary and Zstandard.
pq.write_table(
    pa.table(
        {
            "messages": pa.array(
                [
                    [{"role": "user", "content": "2+2=?"}, {"role": "assistant", "content": "It is 4."}],
                    [
                        {"role": "system", "content": "Be brief."},
                        {"role": "user", "content": "naïve ×?"},
                        {"role": "assistant", "content": "No."},
                    ],
                    [{"role": "user", "content": "3+3=?"}],
                ],
                messages,
            ),
            "answer": pa.array([4, 5, 6], pa.int64()),
            "kind": ["sum", "word", "sum"],
        }
    ),
    "conversations.parquet",
    row_group_size=2,
    compression="zstd",
)

# Plain columns of other types, Snappy, and an unused column.
pq.write_table(
    pa.table(
        {
            "question": [f"What is half of {n}?" for n in range(5)],
            "answer": pa.array([n / 2 for n in range(5)], pa.float64()),
            "flag": [True, False, None, True, False],
            "when": pa.array([0, 1, 2, 3, 4], pa.date32()),
        }
    ),
    "questions.parquet",
    compression="snappy",
)

# Invalid files: a missing value in the third row, and a file without rows.
pq.write_table(
    pa.table({"prompt": ["a", "b", None], "answer": ["1", "2", "3"]}), "missing.parquet", compression="gzip"
)
pq.write_table(
    pa.table({"prompt": pa.array([], pa.string()), "answer": pa.array([], pa.string())}), "empty.parquet"
)
