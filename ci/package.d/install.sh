#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Beside an unpacked archive, this script installs that. Alone, for example from a pipe, it fetches
# the archive of a release, compares its checksum, unpacks it, and calls the script in it. The list
# of what was installed, and a copy of this script, are in DIR/lib/vbts. vbts also runs without
# being installed: bin/vbts finds its files relative to itself.
set -eu

usage='usage: install.sh [--prefix DIR]
       install.sh --uninstall [--prefix DIR]
Installs vbts in DIR (~/.local), or removes it. VBTS_RELEASE is the address of the release.'
version='@VERSION@'
release=${VBTS_RELEASE:-@REPOSITORY@/releases/download/v$version}

die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

# remove: removes the files of the list, and then the directories that the installation has made and
# that are empty now.
remove() {
	sed -n 's/^file //p' "$list" | while IFS= read -r name; do
		rm -f "$prefix/$name"
	done
	made=$(sed -n 's/^directory //p' "$list" | LC_ALL=C sort -r)
	rm -f "$list"
	printf '%s\n' "$made" | while IFS= read -r name; do
		case $name in
		'') ;;
		/*) rmdir "$name" 2>/dev/null || : ;;
		*) rmdir "$prefix/$name" 2>/dev/null || : ;;
		esac
	done
}
# directory NAME: makes a directory, and those above it, and notes the new ones: those of the prefix
# by their names below it.
directory() {
	[ ! -d "$1" ] || return 0
	directory "$(dirname "$1")"
	mkdir "$1"
	made="$made
directory ${1#"$prefix/"}"
}
# fetch NAME: fetches a file of the release into the directory $work.
fetch() {
	if command -v curl >/dev/null; then
		curl --fail --silent --show-error --location --output "$work/$1" "$release/$1"
	elif command -v wget >/dev/null; then
		wget -q -O "$work/$1" "$release/$1"
	else
		die "neither curl nor wget is installed"
	fi || die "cannot fetch $release/$1"
}
# fetch_and_install: installs the release.
fetch_and_install() {
	machine=$(uname -s -m)
	[ "$machine" = 'Linux x86_64' ] || die "vbts runs on Linux on x86-64, and this is $machine"
	name=vbts-$version-x86_64-linux
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' HUP INT TERM
	fetch SHA256SUMS
	sed -n "/ $name.tar.gz\$/p" "$work/SHA256SUMS" >"$work/sum"
	[ -s "$work/sum" ] || die "$release/SHA256SUMS has no checksum of $name.tar.gz"
	fetch "$name.tar.gz"
	(cd "$work" && sha256sum -c sum >/dev/null 2>&1) ||
		die "$release/$name.tar.gz does not have the checksum of SHA256SUMS"
	tar -xzf "$work/$name.tar.gz" -C "$work"
	sh "$work/$name/install.sh" --prefix "$prefix"
}
# install_here: installs the unpacked archive of this script.
install_here() {
	[ "$here" != "$prefix" ] || die "$prefix is the unpacked archive itself"
	[ ! -f "$list" ] || remove
	made=
	directory "$prefix/lib/vbts"
	# The list is complete before the first file is there: a failed installation can be removed.
	files=$(cd "$here" && find bin lib share -type f | LC_ALL=C sort)
	for name in $files; do directory "$(dirname "$prefix/$name")"; done
	{
		printf '%s\n' "$made" | sed '/^$/d'
		for name in $files lib/vbts/install.sh; do echo "file $name"; done
	} >"$list"
	for name in $files; do
		cp "$here/$name" "$prefix/$name.new"
		mv "$prefix/$name.new" "$prefix/$name"
	done
	cp "$0" "$prefix/lib/vbts/install.sh"
	echo "installed vbts in $prefix"
	case :${PATH:-}: in
	*":$prefix/bin:"*) ;;
	*) echo "$prefix/bin is not in PATH: call $prefix/bin/vbts, or add it" ;;
	esac
	echo "to remove it: $prefix/lib/vbts/install.sh --uninstall"
}
# main ARGUMENT...: a function, so that nothing runs before the whole script has come.
main() {
	# The directory of this script, unless the shell reads it from a pipe.
	here=
	case $0 in
	*install.sh) here=$(cd "$(dirname "$0")" && pwd) ;;
	esac
	prefix=${HOME:+$HOME/.local} uninstall=
	# The copy in DIR/lib/vbts.
	[ -z "$here" ] || [ ! -f "$here/installed" ] || prefix=${here%/lib/vbts}
	while [ $# -gt 0 ]; do
		case $1 in
		--prefix) [ $# -ge 2 ] || die "--prefix needs a directory"; prefix=$2; shift ;;
		--prefix=*) prefix=${1#*=} ;;
		--uninstall) uninstall=1 ;;
		-h | --help) printf '%s\n' "$usage"; exit 0 ;;
		*) die "unknown argument '$1' (--help prints the usage)" ;;
		esac
		shift
	done
	[ -n "$prefix" ] || die "HOME is not set: name a directory with --prefix"
	case $prefix in /*) ;; *) prefix=$(pwd)/$prefix ;; esac
	list=$prefix/lib/vbts/installed
	if [ "$uninstall" ]; then
		[ -f "$list" ] || die "$list is missing: vbts is not installed in $prefix"
		remove
		echo "removed vbts from $prefix"
	elif [ -n "$here" ] && [ -x "$here/bin/vbts" ]; then
		install_here
	else
		fetch_and_install
	fi
}
main "$@"
