"""`stoker demo`: an embedded cluster, a small workload of real processes, and a report.

It uses the same client and the same cluster as `stoker up`. Nothing else imports it.
"""
