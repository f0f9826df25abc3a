"""The gRPC JobService, and what every gRPC service of a control plane needs: authentication and status codes.

Messages are decoded, handed to `control`, and answers are encoded. The agents' service belongs to `live`.
"""
