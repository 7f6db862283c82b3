#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: install.sh [--prefix DIR]
#        install.sh --uninstall [--prefix DIR]
# Installs vbts from the directory of this script in DIR (/usr/local), or removes it. The list of
# what was installed, and a copy of this script, are in DIR/lib/vbts. vbts also runs without being
# installed: bin/vbts finds its files relative to itself.
set -eu

die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

prefix=/usr/local uninstall=
while [ $# -gt 0 ]; do
	case $1 in
	--prefix) [ $# -ge 2 ] || die "--prefix needs a directory"; prefix=$2; shift ;;
	--prefix=*) prefix=${1#*=} ;;
	--uninstall) uninstall=1 ;;
	-h | --help) sed -n '3,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) die "unknown argument '$1' (--help prints the usage)" ;;
	esac
	shift
done
case $prefix in /*) ;; *) prefix=$(pwd)/$prefix ;; esac
list=$prefix/lib/vbts/installed

# remove: removes the files of the list, and then the directories that the installation has made and
# that are empty now.
remove() {
	sed -n 's/^file //p' "$list" | while IFS= read -r name; do
		rm -f "$prefix/$name"
	done
	made=$(sed -n 's/^directory //p' "$list" | LC_ALL=C sort -r)
	rm -f "$list"
	printf '%s\n' "$made" | while IFS= read -r name; do
		[ -z "$name" ] || rmdir "$(realpath "$prefix/$name")" 2>/dev/null || :
	done
}
# directory NAME: makes a directory below the prefix, and those above it, and notes the new ones.
directory() {
	[ ! -d "$prefix/$1" ] || return 0
	[ "$1" = . ] || directory "$(dirname "$1")"
	mkdir "$prefix/$1"
	made="$made
directory $1"
}

if [ "$uninstall" ]; then
	[ -f "$list" ] || die "$list is missing: vbts is not installed in $prefix"
	remove
	echo "removed vbts from $prefix"
	exit
fi
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$here/bin/vbts" ] || die "$here has no bin/vbts: call the script of an unpacked archive"
[ "$here" != "$prefix" ] || die "$prefix is the unpacked archive itself"
[ ! -f "$list" ] || remove
mkdir -p "$(dirname "$prefix")"
made=
[ -d "$prefix" ] || { mkdir "$prefix"; made="directory ."; }
directory lib/vbts
# The list is complete before the first file is there, so that a failed installation can be removed.
files=$(cd "$here" && find bin lib share -type f | LC_ALL=C sort)
for name in $files; do directory "$(dirname "$name")"; done
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
echo "to remove it: $prefix/lib/vbts/install.sh --uninstall --prefix $prefix"
