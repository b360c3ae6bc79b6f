//! Reports of gate runs: rows, merge, tables, JUnit.
