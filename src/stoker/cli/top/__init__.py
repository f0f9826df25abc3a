"""`stoker top`: the cluster as a picture that a person can act upon.

What is asked and done (`app`), how it is put into words (`picture`) and how it is drawn (`widgets`) are apart; only
`picture` knows nothing of textual. Nothing outside this folder imports it but the command, and that only when it runs,
for it takes longer to load than any other command takes to end.
"""
