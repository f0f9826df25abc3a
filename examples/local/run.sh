#!/bin/sh
# The two daemons, four fake V100, and the REST calls that users of the dgpu dialect type. Exits 0 when all went well.
#
# The node joins with a token, once; a user's token curl reads from a file, so that it stands in no list of processes.
#
# HTTP_PORT (18080), GRPC_PORT (19090), NODE_PORT (19091) and DATA (a temporary folder) may be set from outside.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
stoker=${STOKER:-$root/.venv/bin/stoker}
[ -x "$stoker" ] || { echo "run.sh: no $stoker; run \`make demo\` once, or set STOKER" >&2; exit 1; }
command -v curl >/dev/null || { echo "run.sh: curl is missing" >&2; exit 1; }

http_port=${HTTP_PORT:-18080} grpc_port=${GRPC_PORT:-19090} node_port=${NODE_PORT:-19091}
data=${DATA:-$(mktemp -d)}
api=http://127.0.0.1:$http_port/api/v1
control= agent=

clean_up() {
    for pid in $agent $control; do kill "$pid" 2>/dev/null || true; done
    for pid in $agent $control; do wait "$pid" 2>/dev/null || true; done
    [ -n "${DATA:-}" ] || rm -rf "$data"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# Ask until the answer has the word, for at most a minute.
until_says() {
    tries=0
    until curl -s --max-time 5 -H "@$data/user.header" "$2" | grep -q "$1"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "run.sh: no $1 at $2 after a minute" >&2; tail -n 20 "$data"/*.log >&2; exit 1; }
        sleep 0.1
    done
}
show() {
    echo "\$ curl $*"
    curl -sS --fail-with-body --max-time 10 -H "@$data/user.header" "$@"
    echo
}
id_of() { sed -n 's/.*"task_id": *"\([^"]*\)".*/\1/p'; }

umask 077
mkdir -p "$data/bin"
ln -sf "$here/fake-nvidia-smi" "$data/bin/nvidia-smi"
# The first tokens are made in the data folder itself, before anything runs.
"$stoker" token create --role user --tenant default --data-dir "$data/control" >"$data/user.token"
echo "Authorization: Bearer $(cat "$data/user.token")" >"$data/user.header"
STOKER__DATA_DIR=$data/control STOKER__HTTP__PORT=$http_port \
    STOKER__GRPC__PORT=$grpc_port STOKER__GRPC__NODE_PORT=$node_port \
    "$stoker" control -c "$here/control.yaml" >"$data/control.log" 2>&1 &
control=$!
until_says ready "http://127.0.0.1:$http_port/ready"
"$stoker" token create --role join --nodes local-1 --data-dir "$data/control" >"$data/join.token"
STOKER__DATA_DIR=$data/agent "$stoker" agent join "127.0.0.1:$grpc_port" --token-file "$data/join.token" -c "$here/agent.yaml"
PATH=$data/bin:$PATH STOKER__DATA_DIR=$data/agent STOKER__CONTROL__ADDRESSES=127.0.0.1:$grpc_port \
    "$stoker" agent -c "$here/agent.yaml" >"$data/agent.log" 2>&1 &
agent=$!
until_says V100 "$api/gpus"

echo "# what there is"
show "$api/gpus"

echo "# the seed's own line: accepted as it is (there is no train.py in the job's folder, so it will say so and fail)"
show -X POST "$api/tasks" -d '{"priority":"high","gpu_count":2,"command":"python train.py"}' | tee "$data/first"
first=$(id_of <"$data/first")

echo "# the same with a path that exists, and one on a named model"
show -X POST "$api/tasks" \
    -d '{"priority":"high","gpu_count":2,"command":"python3 \"$EXAMPLE\"/train.py","env":{"EXAMPLE":"'"$here"'"}}' |
    tee "$data/second"
second=$(id_of <"$data/second")
show -X POST "$api/tasks" \
    -d '{"priority":"low","gpu_count":1,"gpu_model":"V100","command":"sleep 600"}' | tee "$data/third"
third=$(id_of <"$data/third")

until_says '"status": *"failed"' "$api/tasks/$first"
until_says '"status": *"success"' "$api/tasks/$second"
until_says '"status": *"running"' "$api/tasks/$third"
echo "# one task, all tasks, what the second one wrote"
show "$api/tasks/$second"
show "$api/tasks?status=running&priority=low&limit=10"
STOKER_TOKEN=$(cat "$data/user.token") STOKER_SERVER=http://127.0.0.1:$http_port "$stoker" logs "$second"

echo "# cancel means gone"
show -X DELETE "$api/tasks/$third"
until_says '"status": *"failed"' "$api/tasks/$third"
show "$api/cluster/status"
echo "done: three tasks accepted, one failed, one succeeded, one cancelled"
