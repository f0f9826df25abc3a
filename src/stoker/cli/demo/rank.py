"""Program of a rank in the demo's gang: it proves that the ranks meet.

The program that `stoker demo` runs as every rank of its two-node gang, and an example of a rendezvous without any
library: rank 0 listens on MASTER_ADDR:MASTER_PORT, every other rank reports to it there and is told to go on once all
have come. Exit 0 means that this rank met all the others and holds the GPUs it was promised.

Standard library only: it is started with a bare interpreter.
"""

import os
import socket
import sys
from threading import Event

PATIENCE_S = 15
KNOCKS_PER_S = 20


def main(gpus_promised: int) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    gpus = [uuid for uuid in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if uuid]
    if len(gpus) != gpus_promised:
        sys.exit(f"rank {rank} was promised {gpus_promised} GPUs and sees {len(gpus)}")
    met = _gather(address, world, len(gpus)) if rank == 0 else _report(address, rank, world, len(gpus))
    print(f"rank {rank} of {world} on {os.environ['STOKER_NODE']} with {len(gpus)} GPUs met {met}", flush=True)


def _gather(address: tuple[str, int], world: int, gpus: int) -> str:
    """Rank 0: wait for everyone, then answer everyone."""
    peers: dict[int, tuple[socket.socket, int]] = {}
    with socket.create_server(address) as server:
        server.settimeout(PATIENCE_S)
        while len(peers) < world - 1:
            peer, _ = server.accept()
            peer.settimeout(PATIENCE_S)
            with peer.makefile("r") as lines:
                number, theirs, their_world = map(int, lines.readline().split())
            if number in peers or not 0 < number < world or their_world != world:
                sys.exit(f"rank {number} of {their_world} came to a gang of {world}, or came twice")
            peers[number] = peer, theirs
        total = gpus + sum(theirs for _, theirs in peers.values())
        for peer, _ in peers.values():
            peer.sendall(f"go {total}\n".encode())
            peer.close()
    return f"ranks {','.join(map(str, sorted(peers)))}: {total} GPUs in all"


def _report(address: tuple[str, int], rank: int, world: int, gpus: int) -> str:
    """Any other rank: rank 0 may not listen yet, so try until it does."""
    for _ in range(PATIENCE_S * KNOCKS_PER_S):
        try:
            with socket.create_connection(address, timeout=PATIENCE_S) as master:
                master.sendall(f"{rank} {gpus} {world}\n".encode())
                with master.makefile("r") as lines:
                    word, total = lines.readline().split()
        except ConnectionRefusedError:
            Event().wait(1 / KNOCKS_PER_S)
            continue
        if word != "go":
            sys.exit(f"rank 0 said {word!r}")
        return f"rank 0: {total} GPUs in all"
    sys.exit(f"rank 0 never listened at {address[0]}:{address[1]}")


if __name__ == "__main__":
    main(gpus_promised=int(sys.argv[1]))
