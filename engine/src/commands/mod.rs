//! The commands of the `samebits` binary, one file each.
