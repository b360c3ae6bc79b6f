#!/usr/bin/env bash
# Fuzzes the readers of headers and configs for a bounded time each.
#   fuzz/run.sh [SECONDS]     60 unless given
# Exit code 0: nothing found; 1: a crash, whose input is under fuzz/artifacts; 2: UNMEASURABLE, since
# nightly Rust, cargo-fuzz or a C++ compiler is missing (rustup toolchain install nightly; cargo
# install cargo-fuzz); 3: the targets do not build.
set -euo pipefail
cd "$(dirname "$0")"
seconds="${1:-60}"

unmeasurable() {
    echo "UNMEASURABLE: $1" >&2
    exit 2
}
command -v rustup >/dev/null || unmeasurable "rustup is not installed"
rustup run nightly rustc --version >/dev/null 2>&1 || unmeasurable "no nightly toolchain"
cargo +nightly fuzz --version >/dev/null 2>&1 || unmeasurable "cargo-fuzz is not installed"
command -v c++ >/dev/null || unmeasurable "no C++ compiler, which libFuzzer is built with"

out="$PWD/../target/fuzz"
# The header target writes a file a run.
if [ -w /dev/shm ]; then export TMPDIR=/dev/shm; fi
cargo run --quiet --release --target-dir "$out" --example seeds -- corpus || exit 3
cargo +nightly fuzz build --fuzz-dir . --target-dir "$out" || exit 3
found=0
for reader in header config; do
    cargo +nightly fuzz run --fuzz-dir . --target-dir "$out" "$reader" -- \
        -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -timeout=10 -verbosity=0 \
        -print_final_stats=1 || found=1
done
exit "$found"
