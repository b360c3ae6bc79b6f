//! The `samebits` binary.
fn main() {}
