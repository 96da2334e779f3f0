"""Pictures of a machine, and of a placed job.

``text`` (matrix and tree), ``document``, ``svg`` (of the parts in ``drawing``) and ``dot`` show a machine,
with who holds what from ``usage``; ``columns`` aligns the text of tables; ``job`` is a placed job as values,
as text and as SVG.
"""
