# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sourced by the scripts in this directory: strict mode, and what they share.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# When the first of these scripts began, which may have called the others.
export VBTS_CI_BEGAN=${VBTS_CI_BEGAN:-$(date +%s)}

# say TEXT: a headline, with the minutes and seconds until now.
say() {
	local seconds=$(($(date +%s) - VBTS_CI_BEGAN))
	printf '\n== %d:%02d %s\n' $((seconds / 60)) $((seconds % 60)) "$*" >&2
}
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# packages NAME...: installs the Debian packages that are missing.
packages() {
	local missing=() name
	for name in "$@"; do
		dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
	done
	[ ${#missing[@]} -eq 0 ] && return
	say "Installing ${missing[*]}"
	local as_root=()
	[ "$(id -u)" -eq 0 ] || as_root=(sudo)
	local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq)
	"${apt[@]}" update || die "apt-get update failed: check the package sources of this machine"
	"${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null ||
		die "could not install ${missing[*]}"
}

# rust: makes sure that there is a Rust toolchain as new as Cargo.toml asks for.
rust() {
	local want have
	want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
	if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
		PATH=$HOME/.cargo/bin:$PATH
	fi
	if ! command -v cargo >/dev/null && apt-cache show rustup >/dev/null 2>&1; then
		packages rustup
		rustup default stable
	fi
	command -v cargo >/dev/null || die "Rust $want or later is needed: install it from https://rustup.rs and call this again"
	have=$(rustc --version | cut -d' ' -f2)
	[ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n1)" = "$want" ] ||
		die "Rust $want or later is needed, and this is $have: run 'rustup update'"
}
