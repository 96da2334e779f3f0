"""Pictures of a machine, and of a placed job.

``text_tree``, ``matrix``, ``document``, ``svg`` (of the parts in ``drawing``) and ``dot`` show a machine, with who holds what
from ``usage``; ``job`` is a placed job as values, and ``job_picture`` shows it as text and SVG.
"""
