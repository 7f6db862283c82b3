# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sourced by the scripts in this directory: strict mode, and functions that several of them use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# When the first of these scripts started. A script that another one calls inherits the time.
export VBTS_CI_BEGAN=${VBTS_CI_BEGAN:-$(date +%s)}

# say TEXT: prints a headline with the minutes and seconds since the start.
say() {
	local seconds=$(($(date +%s) - VBTS_CI_BEGAN))
	printf '\n== %d:%02d %s\n' $((seconds / 60)) $((seconds % 60)) "$*" >&2
}

# stage TEXT: begins a stage of a script, whose time stage_times tells.
stages=() stages_began=()
stage() {
	stages+=("$*")
	stages_began+=("$(date +%s)")
	say "$*"
}
# stage_times: prints how long each stage has taken.
stage_times() {
	local number seconds
	stages_began+=("$(date +%s)")
	say "How long each stage of $(basename "$0") took"
	for number in "${!stages[@]}"; do
		seconds=$((stages_began[number + 1] - stages_began[number]))
		printf '%4d:%02d  %s\n' $((seconds / 60)) $((seconds % 60)) "${stages[number]}" >&2
	done
}
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# The exit status of a suite that cannot run on this machine.
SKIPPED=77
# skipped "WHAT: WHY": says that a check is left out, and why. The line also goes to the file of
# VBTS_CI_SKIPS, which ci/suite, ci/test and ci/test-all count and show at their ends. Tests in Rust
# (testkit/src/skips.rs) and scripts in Python (ci/debian.py) add to the same file.
skipped() {
	say "Skipped: $*"
	[ -z "${VBTS_CI_SKIPS:-}" ] || printf '%s\n' "$*" >>"$VBTS_CI_SKIPS"
}
# skip WHY: ends a suite that cannot run on this machine.
skip() {
	skipped "$(basename "$0"): $*"
	exit "$SKIPPED"
}
# show_skips: prints the number of lines in VBTS_CI_SKIPS, and what they say, once for each reason.
show_skips() {
	[ -s "$VBTS_CI_SKIPS" ] || return 0
	say "Skipped: $(wc -l <"$VBTS_CI_SKIPS")"
	awk '
		{
			end = index($0, ": ")
			why = substr($0, end + 2)
			if (!(why in count))
				reasons[++last] = why
			if (++count[why] <= 3)
				what[why] = what[why] (count[why] > 1 ? ", " : "") substr($0, 1, end - 1)
		}
		END {
			for (number = 1; number <= last; number++) {
				why = reasons[number]
				more = count[why] > 3 ? " and " count[why] - 3 " more" : ""
				print "    " what[why] more ": " why
			}
		}' "$VBTS_CI_SKIPS" >&2
}

# commit: prints what is checked: the commit, with a "+" if files differ from it.
commit() {
	local name
	name=$(git rev-parse HEAD 2>/dev/null) || name=unknown
	if [ "$name" = unknown ] || [ -n "$(git status --porcelain)" ]; then name+=+; fi
	echo "$name"
}

# apt ARGUMENT...: runs apt-get as root. It waits for dpkg's lock, but not for that of the package
# lists, which a script beside this one may have.
apt() {
	local as_root=()
	[ "$(id -u)" -eq 0 ] || as_root=(sudo)
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes \
		flock --close --timeout 600 /var/lib/apt/lists apt-get -o DPkg::Lock::Timeout=300 -qq "$@"
}

# update_lists: fetches apt's package lists, once for a script and the scripts that it calls.
update_lists() {
	[ -z "${VBTS_CI_UPDATED:-}" ] || return 0
	apt update || die "apt-get update failed: check the package sources of this machine"
	export VBTS_CI_UPDATED=1
}

# packages NAME...: installs the Debian packages that are missing.
packages() {
	local missing=() name
	for name in "$@"; do
		dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' ||
			missing+=("$name")
	done
	[ ${#missing[@]} -eq 0 ] && return
	say "Installing ${missing[*]}"
	update_lists
	apt install -y --no-install-recommends "${missing[@]}" >/dev/null ||
		die "could not install ${missing[*]}"
}

# python_tools NAME REQUIREMENT...: provides Python packages of these versions in target/tools/NAME,
# for $PYTHON (python3). Fails if this machine has no pip.
python_tools() {
	local tools=target/tools/$1 python=${PYTHON:-python3}
	shift
	[ "$(cat "$tools/versions" 2>/dev/null)" != "$*" ] || return 0
	"$python" -m pip --version >/dev/null 2>&1 || packages python3-pip
	say "Installing $* into $tools"
	rm -rf "$tools" "$tools.new"
	"$python" -m pip install --quiet --no-warn-conflicts --root-user-action ignore \
		--target "$tools.new" "$@"
	echo "$*" >"$tools.new/versions"
	mv "$tools.new" "$tools"
}

# package_field NAME: prints a field that all crates have in common.
package_field() { sed -n "/^\[workspace.package\]/,/^\$/s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml; }

# installer VERSION: prints the script that installs the release of a version.
installer() {
	sed -e "s|@VERSION@|$1|" -e "s|@REPOSITORY@|$(package_field repository)|" \
		ci/package.d/install.sh
}

# program_packages quick|all: prints the packages of the rows of tests/real_programs/table: of those
# for ci/test, or of all.
program_packages() {
	awk -v RS= -v FS='\n' -v tier="$1" '
		tier == "all" || $0 ~ "\nTier: " tier {
			for (i = 1; i <= NF; i++)
				if (sub(/^Packages: /, "", $i))
					print $i
		}' tests/real_programs/table | tr ' ' '\n' | sort -u
}

# candidate NAME: prints the version of a Debian package that apt would install, if any.
candidate() {
	apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p' | grep -v '^(none)$' || :
}

# at_least WANTED VERSION: succeeds if a version is new enough.
at_least() { [ "$(printf '%s\n' "$@" | sort -V | head -n1)" = "$1" ]; }

# has_rust VERSION: succeeds if cargo and rustc work and are new enough.
has_rust() {
	local have
	have=$(rustc --version 2>/dev/null | cut -d' ' -f2) && cargo --version >/dev/null 2>&1 &&
		at_least "$1" "$have"
}

# rust: provides a Rust toolchain that is as new as Cargo.toml requires. It takes the first of: the
# installed one, the newest that rustup can download, Debian's packages. Debian 12 has no rustup. It
# has the toolchain that builds its browsers, in packages whose names end with "-web".
rust() {
	local want name version
	want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
	if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
		PATH=$HOME/.cargo/bin:$PATH
	fi
	! has_rust "$want" || return 0
	update_lists
	# cargo needs them to fetch crates, rustup to fetch toolchains.
	packages ca-certificates
	if ! command -v rustup >/dev/null && [ -n "$(candidate rustup)" ]; then
		packages rustup
	fi
	if command -v rustup >/dev/null; then
		say "Installing Rust with rustup"
		if rustup toolchain install stable --profile minimal && rustup default stable; then
			hash -r
			! has_rust "$want" || return 0
		fi
		say "rustup cannot download a toolchain"
	fi
	for name in rustc rustc-web; do
		version=$(candidate "$name")
		if [ -n "$version" ] && at_least "$want" "$version"; then
			packages "$name" "${name/rustc/cargo}"
			hash -r
			! has_rust "$want" || return 0
		fi
	done
	version=$(rustc --version 2>/dev/null) || version="no rustc"
	die "Rust $want or later is needed, and there is $version:" \
		"install it from https://rustup.rs, or run 'rustup update'"
}

# rust_tools: tries to install rustfmt and clippy for the toolchain. Fails if one is missing.
rust_tools() {
	rust
	! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 || return 0
	if dpkg-query -W -f '${Status}' rustc-web 2>/dev/null | grep -q 'ok installed'; then
		packages rustfmt-web rust-web-clippy
	elif dpkg-query -W -f '${Status}' rustc 2>/dev/null | grep -q 'ok installed'; then
		packages rustfmt rust-clippy
	elif command -v rustup >/dev/null; then
		rustup component add rustfmt clippy || :
	fi
	{ cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1
}
