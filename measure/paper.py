"""The figures that TF-gRPC-Bench published: another machine's, for shapes, never to be reproduced as numbers.

Biswas, Lu, Panda: arXiv 1804.01138. It prints no tables, so they were read from the vector graphics of its figures, to about
1 % of full scale. Cluster A has 40G Ethernet and InfiniBand EDR (IPoIB, RDMA), cluster B 10G Ethernet and InfiniBand FDR. Each
is a mean of 5 runs; no spread was published. RDMA is the authors' own gRPC. Whether latency is half a round trip is not
stated; the numbers fit half.
"""

from __future__ import annotations

SOURCE = "TF-gRPC-Bench, arXiv 1804.01138; read from its vector graphics, about ±1 % of full scale"

# All by network of a cluster.
NETWORKS = ("A 40G Ethernet", "A IPoIB", "A RDMA", "B 10G Ethernet", "B IPoIB", "B RDMA")

# By benchmark and scheme, in the order of NETWORKS: ms, MB/s, RPC/s. Non-serialized; throughput with 2 servers, 3 workers.
BY_SCHEME: dict[str, dict[str, tuple[float, ...]]] = {
    "p2p-latency": {
        "uniform": (2.01, 1.96, 0.80, 3.92, 2.84, 1.02),
        "random": (1.50, 1.42, 0.63, 4.81, 3.81, 0.54),
        "skew": (2.92, 2.70, 1.19, 5.73, 4.16, 1.27),
    },
    "p2p-bandwidth": {
        "uniform": (2404, 2583, 5167, 1106, 1483, 4361),
        "random": (2404, 2256, 5224, 1106, 1535, 4518),
        "skew": (2372, 2462, 5256, 1106, 1483, 4900),
    },
    "ps-throughput": {
        "uniform": (658, 804, 2759, 448, 756, 2730),
        "random": (804, 950, 2885, 619, 1152, 3641),
        "skew": (512, 532, 2136, 326, 637, 1682),
    },
}

# Latency of a serialized payload of 64 KB, in us: communication, serialization.
SERIALIZED_64KB = {"A 40G Ethernet": (74.4, 27.7), "A IPoIB": (69.7, 27.5), "A RDMA": (29.6, 28.3)}

# Latency of so many Large buffers (1 MB each), in ms.
BY_BUFFERS = {
    "A IPoIB": {2: 1.18, 4: 2.03, 6: 2.75, 8: 3.92, 10: 4.62},
    "A RDMA": {2: 0.37, 4: 0.70, 6: 1.05, 8: 1.40, 10: 1.75},
}
