"""Text for terminals: tables, details, timelines and formats of numbers and times.

Nothing here asks a server. Text from users is made safe before it is shown.
"""
