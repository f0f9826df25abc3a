"""Runtime of a control plane of its own, with agents as its nodes: sessions, instructions, gRPC and failover.

Only `main` picks adapters. No rule about jobs stands here: `brain.state.admit` and `brain.cycle` are asked.
"""
