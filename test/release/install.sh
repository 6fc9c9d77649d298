#!/bin/sh
# Installs the CLI pelago of a release, after its checksum has been compared:
#
#   sh install.sh [-v VERSION] [-d DIRECTORY]
#
# -v  another version than @VERSION@
# -d  where the program goes; by default /usr/local/bin, as an ordinary user $HOME/.local/bin
#
# PELAGO_URL is the address below which VERSION/FILE is, for mirrors.
set -eu

version=@VERSION@
url=${PELAGO_URL:-@URL@}
directory=/usr/local/bin
[ "$(id -u)" = 0 ] || directory=$HOME/.local/bin

fail() {
	echo "install.sh: $*" >&2
	exit 1
}

while getopts v:d:h option; do
	case $option in
	v) version=$OPTARG ;;
	d) directory=$OPTARG ;;
	h) sed -n '2,/^set/s/^#\{0,1\} \{0,1\}//p' "$0" | sed '/^set/d'; exit 0 ;;
	*) fail "usage: sh install.sh [-v VERSION] [-d DIRECTORY]" ;;
	esac
done

case $(uname -s) in
Linux) os=linux ;;
Darwin) os=darwin ;;
*) fail "no program for $(uname -s): on Windows unpack pelago-$version-windows-amd64.zip" ;;
esac
case $(uname -m) in
x86_64 | amd64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
*) fail "no program for $(uname -m)" ;;
esac

if command -v curl >/dev/null; then
	get() { curl -fsSL -o "$2" "$1"; }
elif command -v wget >/dev/null; then
	get() { wget -qO "$2" "$1"; }
else
	fail "neither curl nor wget is installed"
fi
if command -v sha256sum >/dev/null; then
	check() { sha256sum -c -; }
else
	check() { shasum -a 256 -c -; }
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
archive=pelago-$version-$os-$arch.tar.gz
for file in SHA256SUMS "$archive"; do
	get "$url/$version/$file" "$tmp/$file" || fail "$url/$version/$file cannot be downloaded: is there a release $version?"
done
cd "$tmp"
grep "  $archive\$" SHA256SUMS | check >/dev/null || fail "$archive is not the file of SHA256SUMS: nothing was installed"
tar -xzf "$archive" pelago
mkdir -p "$directory"
mv pelago "$directory/pelago.$$"
mv "$directory/pelago.$$" "$directory/pelago"
echo "installed $directory/pelago, $version"
case :$PATH: in
*:"$directory":*) ;;
*) echo "$directory is not in PATH: add it" ;;
esac
echo "completion: pelago completion --help"
