"""Commands of the command line, one file for each noun with its verbs.

They parse words, call the client and draw; no rule about jobs lives here.
"""
