"""docs/reference, made of the code's own values: `pytest --regen tests/unit/docs/test_reference.py`."""
