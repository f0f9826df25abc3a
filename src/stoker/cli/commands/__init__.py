"""One file per noun with its verbs.

They parse words, call the client and draw; no rule about jobs lives here.
"""
