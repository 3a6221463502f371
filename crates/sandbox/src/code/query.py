"""Runs an SQL program on a database made by the statements of standard input; prints the rows of its last query."""

import sqlite3
import sys

database = sqlite3.connect(":memory:", isolation_level=None)
database.executescript(sys.stdin.read())
statement, rows = "", []
with open("main.sql") as file:
    for line in file.read().splitlines(keepends=True) + [";"]:
        for part in line.replace(";", ";\0").split("\0"):
            statement += part
            if sqlite3.complete_statement(statement):
                if statement.strip(" \t\r\n;"):
                    cursor = database.execute(statement)
                    rows = cursor.fetchall() if cursor.description else rows
                statement = ""
for row in rows:
    print("|".join("" if value is None else str(value) for value in row))
