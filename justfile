# Lists the recipes.
default:
    @just --list

# Runs all checks of CI: format, lints, tests, doctests, docs and examples.
test:
    scripts/test

# Runs the lints: fast feedback during development.
check:
    cargo clippy --all-targets

# Trains the example of the README.
demo:
    cargo run --release -- demo

# Runs the Criterion benchmarks of the library and of secure aggregation.
bench:
    cargo bench -p deltafl
    cargo bench -p deltafl-secagg

# Measures the throughput of each model and the peak of this machine.
models:
    cargo run --release -- bench

# Opens the documentation of the libraries in a browser.
doc:
    cargo doc --no-deps --open

# Builds the book in target/book.
book:
    scripts/docs --book

# Runs a fuzz target, for example: just fuzz data_leaf 60.
fuzz target seconds="60":
    scripts/fuzz --seconds {{seconds}} {{target}}

# Checks licences and advisories (requires cargo-deny).
deny:
    cargo deny check
