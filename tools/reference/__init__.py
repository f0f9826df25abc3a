"""The reference pages, each drawn from the code that it describes.

One function per page, from nothing to Markdown. What a page says can only be changed by changing the code.
"""
