"""Backbones for one graph, which run without atoll: the same networks in plain torch and of PyG's layers.

`torch_modules` and `pyg_modules` import nothing of atoll: an export holds the source of the class that it needs.
"""
