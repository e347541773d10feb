"""The maker of the book: record what the cells print, write portable notebooks, publish the pages.

Nothing in here is imported by a chapter, and nothing in here imports torch, the engine or the lab.
"""
