"""The objects under study: layers, attention, residuals, initialization and the sanity check.

Each formula is a small pure function; each layer is a thin module that holds the parameters and
calls it. The door to all of them is `code/normalization.py`; the files here read best in the order
of the chapters.
"""
