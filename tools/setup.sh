#!/bin/sh
# Is `.venv` what the locks say? `setup.sh run` makes it able to run Stoker, `setup.sh dev` to test and check it too;
# `setup.sh docs` makes `.venv-docs`, which builds the pages. `setup.sh programs` installs what only some tests need, where
# that is ours to do; without it they are skipped, and say so.
#
# Needs Python 3.11 or newer and the registry that pip is configured for, nothing else. Everything that comes from
# there is pinned by hash. A stamp named after the locks' checksum makes a second call cost milliseconds.
set -eu
cd "$(dirname "$0")/.."
# uv trusts what the system trusts, as pip does: the registry may be a mirror behind a certificate of one's own.
export UV_SYSTEM_CERTS=true
kind=${1:-run}
venv=.venv
tool=stoker

case $kind in
run) locks="requirements.txt" ;;
dev) locks="requirements-dev.txt" ;;
docs) locks="requirements-docs.txt" venv=.venv-docs tool=mkdocs ;;
programs) ;;
*)
    echo "setup: '$kind' is neither 'run', 'dev', 'docs' nor 'programs'" >&2
    exit 2
    ;;
esac

say() { echo "setup: $*" >&2; }

# PROGRAM:PACKAGE of Debian. The pages are full of curl, and what is checked is what git knows.
few="curl:curl git:git pgrep:procps"
# A real browser tries what pages of other origins may do, a real PostgreSQL keeps the log, real networks are cut, real
# programs train on several machines, and Prometheus reads what it is given.
many="$few chromium:chromium ip:iproute2 iptables:iptables pg_ctlcluster:postgresql torchrun:python3-torch mpirun:openmpi-bin"
many="$many promtool:prometheus"
# Jobs run in containers of a real engine.
many="$many dockerd:docker.io containerd:containerd runc:runc busybox:busybox-static docker-registry:docker-registry podman:podman conmon:conmon"
# A library in the place of the GPU driver's is compiled.
many="$many cc:gcc cc:libc6-dev"
# Whole machines with a systemd of their own lose their power, sleep, and start with a wrong clock.
many="$many qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap mke2fs:e2fsprogs"
install_programs() {
    needs=
    for each in $1; do
        command -v "${each%:*}" >/dev/null 2>&1 || needs="$needs ${each#*:}"
    done
    [ -n "$needs" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing$needs with apt-get"
        case $needs in *postgresql*) # no server of the system's own: the tests start theirs
            mkdir -p /etc/postgresql-common
            [ -e /etc/postgresql-common/createcluster.conf ] ||
                echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
            ;;
        esac
        { timeout 120 apt-get update -qq &&
            DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq --no-install-recommends $needs; } >/dev/null 2>&1 &&
            return
    fi
    say "missing here:$needs; the tests with them are skipped"
}

checksum() { cat "$locks" requirements-build.txt pyproject.toml tools/setup.sh | cksum | cut -d' ' -f1; }

current() {
    [ -x "$venv/bin/$tool" ] && [ -e "$venv/.stoker-$kind-$sum" ]
}

# A python that is new enough and able to make environments; pyenv leaves names behind that don't run.
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
complete() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

find_python() {
    python= lacking=
    for name in ${PYTHON:-} python3.13 python3.12 python3.11 python3 /usr/bin/python3; do
        command -v "$name" >/dev/null 2>&1 && new_enough "$name" || continue
        if complete "$name"; then
            python=$name
            return
        fi
        lacking=${lacking:-$name}
    done
}

# Debian splits venv off; as root we may fetch it ourselves.
install_venv() {
    find_python
    [ -z "$python" ] || return 0
    packages="python3-venv"
    [ -n "$lacking" ] || packages="python3 python3-venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing $packages with apt-get"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages; } >&2 ||
            say "apt-get could not install $packages"
        find_python
    fi
    [ -z "$python" ] || return 0
    if [ -n "$lacking" ]; then
        say "$lacking can't make virtual environments: install its venv package (Debian: apt-get install python3-venv)"
    else
        say "Stoker needs Python 3.11 or newer, and none was found: install it, or set PYTHON=/path/to/python3"
    fi
    exit 1
}

make_venv() {
    if [ -x "$venv/bin/python" ] && new_enough "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    install_venv
    say "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
}

install_all() {
    if [ "$("$venv/bin/uv" --version 2>/dev/null | cut -d' ' -f2)" != "$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements-build.txt)" ] ||
        ! "$venv/bin/python" -c 'import hatchling' 2>/dev/null; then
        "$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r requirements-build.txt
    fi
    say "installing $locks"
    # uv is ten times quicker; where it can't reach the registry that pip is configured for, pip does the same. Bytecode is
    # made now: a control plane would take twice as long to start without it, each time where none may be written.
    "$venv/bin/uv" pip install -q --compile-bytecode --python "$venv/bin/python" --require-hashes -r "$locks" ||
        "$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$locks"
    [ "$kind" = docs ] ||
        "$venv/bin/uv" pip install -q --python "$venv/bin/python" --offline --no-deps --no-build-isolation -e .
}

if [ "$kind" = programs ]; then
    install_programs "$many"
    exit 0
fi
sum=$(checksum)
current && exit 0
# Two makes at once: the second waits, then finds the work done.
if command -v flock >/dev/null 2>&1; then
    exec 9>.venv.lock
    flock 9
    current && exit 0
fi
make_venv
install_all
[ "$kind" != dev ] || install_programs "$few"
rm -f "$venv/.stoker-$kind-"*
: >"$venv/.stoker-$kind-$sum"
