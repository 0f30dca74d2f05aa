"""A Ray cluster of three nodes on this host: ``python -m fakes.ray_nodes`` in a process of its own.

The head has no room for cells, so that any other node may be lost. Prints the address, and ends
when its standard input closes. Run as a process because Ray's own warnings are not ours to heed.
"""

import sys

NODES = 2
CPUS = 2
GPUS = 2
"""Pretended: Ray only counts them."""


def main() -> int:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(NODES):
            cluster.add_node(num_cpus=CPUS, num_gpus=GPUS)
        print(f"address {cluster.address}", flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
