# The menu. `just` lists it.
default:
    @just --list

# Format, lints, tests, doctests, docs and examples: what CI runs.
test:
    scripts/test

# Fast feedback while writing.
check:
    cargo clippy --all-targets

# The paper in a minute.
demo:
    cargo run --release -- demo

# Criterion benches of the library and of secure aggregation.
bench:
    cargo bench -p deltafl
    cargo bench -p deltafl-secagg

# Throughput of each model on this machine, beside its peak.
models:
    cargo run --release -- bench

# The library's documentation, in a browser.
doc:
    cargo doc --no-deps --open

# The book, in target/book.
book:
    scripts/docs --book

# One fuzz target for a while: just fuzz leaf 60. (SQLite has two tables of one name, which is no finding.)
fuzz target seconds="60":
    cd fuzz && ASAN_OPTIONS=detect_odr_violation=0 cargo +nightly fuzz run {{target}} -- -max_total_time={{seconds}}

# Licences and advisories (needs cargo-deny).
deny:
    cargo deny check
