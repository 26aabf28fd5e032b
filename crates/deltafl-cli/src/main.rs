//! The `deltafl` command.

fn main() {}
