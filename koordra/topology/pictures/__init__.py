"""Pictures of a machine, and of a placed job.

``text`` (matrix and tree), ``document``, ``svg`` (of the parts in ``drawing``) and ``dot`` show a machine, with who holds what from
``usage``; ``job`` is a placed job as values, as text and as SVG.
"""
