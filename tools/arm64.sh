#!/usr/bin/env bash
# Runs a command in a small Debian for 64-bit ARM, made once and cached, in which this folder is where it is outside:
#
#   tools/arm64.sh python3 -c 'import platform; print(platform.machine())'
#
# Needs root, and Debian's packages mmdebstrap and qemu-user-static. That the kernel hands ARM programs to qemu holds in
# the command's own namespace, and nowhere else.
set -euo pipefail

root=${XDG_CACHE_HOME:-$HOME/.cache}/pacchettino/arm64
if [ ! -d "$root" ]; then
	new=$(mktemp -d "$(dirname "$root")/arm64.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	mmdebstrap --quiet --arch=arm64 --variant=extract --include=bash,python3,python3-venv \
		"$(. /etc/os-release && echo "$VERSION_CODENAME")" "$new" >&2
	mkdir -p "$new/proc" "$new/dev"
	chmod 755 "$new"
	mv --no-target-directory "$new" "$root" 2>/dev/null || [ -d "$root" ] # another run may have been faster
fi

export root here=$PWD
# shellcheck disable=SC2016 # the inner shell is to expand them
exec unshare --user --map-root-user --mount bash -euc '
	mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
	cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register
	mount --rbind /proc "$root/proc"
	mount --rbind /dev "$root/dev"
	mkdir -p "$root$here"
	mount --rbind "$here" "$root$here"
	exec env -u root -u here HOME=/tmp TMPDIR=/tmp chroot "$root" bash -c "cd \"\$0\" && exec \"\$@\"" "$here" "$@"
' - "$@"
