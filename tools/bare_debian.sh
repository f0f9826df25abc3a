#!/bin/sh
# Do `make demo` and `make test` work on a Debian 12 that has nothing but make, certificates and a package registry?
#
#     tools/bare_debian.sh [COMMAND...]      COMMAND runs in a copy of the tree there; default: make demo, then make test
#
# Needs root and debootstrap. BARE=FOLDER keeps the system in that folder, for the next time; else it goes.
set -eu
cd "$(dirname "$0")/.."
root=${BARE:-$(mktemp -d /var/tmp/stoker-bare-XXXXXX)}

clean_up() {
    for point in dev/shm dev/pts dev sys proc .; do
        umount -l "$root/$point" 2>/dev/null || true
    done
    [ -n "${BARE:-}" ] || rm -rf --one-file-system "$root"
}
trap clean_up EXIT

[ -e "$root/usr/bin/make" ] || debootstrap --variant=minbase --include=make,ca-certificates bookworm "$root" >&2
for file in /etc/hosts /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do # how this machine finds itself and its registry
    [ ! -e "$file" ] || cp -L "$file" "$root$file"
done
mount --bind "$root" "$root" # a system's own root can be mounted anew, privately, and so can this
rm -rf "$root/stoker"
mkdir "$root/stoker"
git ls-files -z | tar -c --null -T - | tar -x -C "$root/stoker"
for point in proc sys dev dev/pts dev/shm; do
    mount --bind "/$point" "$root/$point"
done
[ $# -gt 0 ] || set -- sh -c 'make demo && make test'
chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin ${CI:+CI=$CI} \
    sh -c 'cd /stoker && exec "$@"' sh "$@"
