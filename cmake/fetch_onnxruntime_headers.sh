#!/bin/sh
# Unpacks Debian's libonnxruntime-dev (headers, 85 KB) into the folder $1, using this machine's own Debian mirror.
# Works on any Debian of this or an earlier release with a private apt state: nothing is installed, no root is needed.
set -eu
target=$1
suite=trixie
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

for tool in apt-get dpkg-deb; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: not a Debian machine" >&2; exit 1; }
done
[ -r "$keyring" ] || { echo "$keyring is missing" >&2; exit 1; }

# The first mirror this machine uses, from a deb822 file or from one-line sources.
mirror=$(cat /etc/apt/sources.list.d/debian.sources 2>/dev/null | sed -n 's/^URIs:[[:space:]]*\([^[:space:]]*\).*/\1/p' | head -n 1)
if [ -z "$mirror" ]; then
  mirror=$(cat /etc/apt/sources.list 2>/dev/null |
    sed -n 's/^deb[[:space:]]\{1,\}\(\[[^]]*\][[:space:]]*\)\{0,1\}\([^[:space:]]*\).*/\2/p' | head -n 1)
fi
[ -n "$mirror" ] || { echo "this machine lists no Debian mirror" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
: >"$work/status"
cat >"$work/headers.sources" <<END
Types: deb
URIs: $mirror
Suites: $suite
Components: main
Signed-By: $keyring
END

cd "$work"
set -- -q -o Dir::State="$work/state" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" \
  -o Dir::Etc::sourcelist="$work/headers.sources" -o Dir::Etc::sourceparts=/nonexistent \
  -o Acquire::Languages=none -o Acquire::Retries=2 -o APT::Sandbox::User=
apt-get "$@" update
apt-get "$@" download libonnxruntime-dev
dpkg-deb -x libonnxruntime-dev_*.deb "$work/unpacked"

# Moved in one piece, so that an interrupted fetch leaves no half folder.
rm -rf "$target"
mkdir -p "$(dirname "$target")"
mv "$work/unpacked" "$target"
