#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the fuzz targets in OSS-Fuzz's image for Rust, which sets SRC and OUT. Each target gets its
# seeds and the limits of ci/fuzz.
cd "$SRC/vbts"
cargo fuzz build -O --debug-assertions
for file in fuzz/fuzz_targets/*.rs; do
	target=$(basename "$file" .rs)
	cp "fuzz/target/x86_64-unknown-linux-gnu/release/$target" "$OUT/"
	zip -jqr "$OUT/${target}_seed_corpus.zip" "fuzz/corpus/$target"
	printf '[libfuzzer]\nrss_limit_mb = 1024\nmax_len = 8192\ntimeout = 30\n' \
		>"$OUT/$target.options"
done
