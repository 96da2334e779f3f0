"""The fields that objects have: their types, defaults and how text becomes them."""
