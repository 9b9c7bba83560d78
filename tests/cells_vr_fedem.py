"""VR-FedEM, every way (see test_table.py)."""

from .cells_fedem import Ways

CELLS = Ways({"variance_reduction": True}).cells()
