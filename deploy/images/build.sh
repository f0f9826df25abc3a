#!/bin/sh
# Is there an image of this tree? Fetches the wheels of the lock, checks their hashes, builds Stoker's own, and makes the
# image from them with no network. `make images` calls it.
#
# IMAGE (stoker:VERSION)              name of the image
# BASE (python:3.11-slim-bookworm)    what it is built on: glibc, and a Python 3.11 that can make environments
# DOCKER (docker)                     or podman
set -eu
cd "$(dirname "$0")/../.."
python=.venv/bin/python
docker=${DOCKER:-docker}
base=${BASE:-python:3.11-slim-bookworm}
context=build/images

fail() {
    echo "images: $1" >&2
    echo "hint: $2" >&2
    exit 1
}

command -v "$docker" >/dev/null 2>&1 ||
    fail "there is no '$docker' on PATH" "install Docker (Debian: apt-get install docker.io), or set DOCKER=podman"
"$docker" version >/dev/null 2>&1 ||
    fail "'$docker version' can't reach its daemon" "start it, or set DOCKER_HOST to where it listens; \`$docker version\` says more"
case $(uname -m) in
x86_64 | aarch64) machine=$(uname -m) ;;
*) fail "no wheels are locked for $(uname -m)" "build on x86_64 or aarch64" ;;
esac

version=$("$python" -c 'import stoker; print(stoker.__version__)')
image=${IMAGE:-stoker:$version}

rm -rf "$context"
mkdir -p "$context/wheels"
cp deploy/images/Dockerfile "$context/"
"$python" -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary=:all: \
    --implementation cp --python-version 3.11 --platform "manylinux_2_28_$machine" --platform "manylinux_2_17_$machine" \
    --platform "manylinux2014_$machine" --dest "$context/wheels" -r requirements-extras.txt ||
    fail "the wheels of requirements-extras.txt could not be fetched" "pip's own words are above; it asks the registry that pip is configured for"
.venv/bin/uv build --quiet --wheel --offline --no-build-isolation --python "$python" --out-dir "$context/wheels" .

"$docker" build --network=none --build-arg "BASE=$base" --build-arg "VERSION=$version" --tag "$image" "$context" ||
    fail "'$docker build' on $base failed" "its own words are above; where $base can't be pulled, load it first, or set BASE to an image that is there"
said=$("$docker" run --rm --network=none "$image" --version)
echo "$image: $said"
