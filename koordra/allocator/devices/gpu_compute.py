"""What a whole card computes, in TFLOPS, model by model and precision by precision: so that an amount of
compute can be asked for without knowing the card.

The figures are NVIDIA's data sheets': dense (sparsity doubles them on paper), at boost clock, with tensor
cores from TF32 down and without them for FP64 and FP32. They are peaks, the same measure for every card;
programs reach less. A model or precision that stands here in no line has no amount, and is never taken for
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from koordra.api import names
from koordra.api.opaque.precision import Precision

_PRECISIONS: Final = (
    Precision.FP64,
    Precision.FP32,
    Precision.TF32,
    Precision.FP16,
    Precision.BF16,
    Precision.FP8,
)
_TABLE: Final = """
B200                37    75     1125   2250   2250   4500
H200-NVL            30    60     417.5  835.5  835.5  1671
H200                34    67     494.5  989.5  989.5  1979
H100-NVL            30    60     417.5  835.5  835.5  1671
H100-PCIe           26    51     378    756    756    1513
H100                34    67     494.5  989.5  989.5  1979
H800-PCIe           0.8   51     378    756    756    1513
H800                1     67     494.5  989.5  989.5  1979
H20                 1     44     74     148    148    296
L40S                -     91.6   183    362    362    733
L40                 -     90.5   90.5   181    181    362
L4                  -     30.3   60     121    121    242
A100                9.7   19.5   156    312    312    -
A800                9.7   19.5   156    312    312    -
A30                 5.2   10.3   82     165    165    -
A40                 -     37.4   74.8   149.7  149.7  -
A10                 -     31.2   62.5   125    125    -
A16                 -     4.5    9      18     18     -
A2                  -     4.5    9      18     18     -
T4                  -     8.1    -      65     -      -
V100S               8.2   16.4   -      130    -      -
V100-SXM2           7.8   15.7   -      125    -      -
V100                7     14     -      112    -      -
P100-SXM2           5.3   10.6   -      21.2   -      -
P100                4.7   9.3    -      18.7   -      -
P40                 -     12     -      -      -      -
P4                  -     5.5    -      -      -      -
"""
"""Parts of a card's name, more specific ones first; TFLOPS by precision."""


def _read(table: str) -> Mapping[str, Mapping[str, float]]:
    lines = (line.split() for line in table.strip().splitlines())
    return {
        model: {
            name: float(figure) for name, figure in zip(_PRECISIONS, figures, strict=True) if figure != "-"
        }
        for model, *figures in lines
    }


TFLOPS: Final = _read(_TABLE)


def tflops_of(product_name: str, precision: str) -> float | None:
    """`("NVIDIA A100-SXM4-40GB", "FP16")` -> 312; None for a card or precision that the table lacks."""
    words = product_name.upper().replace("-", " ").split()
    for model, figures in TFLOPS.items():
        if all(any(word == part for word in words) for part in model.upper().split("-")):
            return figures.get(precision)
    return None


def cores_for(wanted: int, precision: str, card: Mapping[str, Any]) -> Decimal | str:
    """Percent of the card for TFLOPS, rounded up, by its attributes; in words why it cannot have them. MIG
    instances have the compute of their profile."""
    asked = f"{wanted} TFLOPS in {precision}"
    if card.get(names.ATTR_TYPE) == names.TYPE_MIG:
        return f"{asked}: a MIG instance has the compute of its profile"
    called = card.get(names.ATTR_PRODUCT_NAME)
    whole = tflops_of(str(called), precision) if called else None
    if whole is None:
        return f"{asked}: none are known of {called or 'a card without a name'}"
    if wanted > whole:
        return f"{asked}: the device has {whole:g}"
    return (Decimal(wanted) * 100 / Decimal(str(whole))).to_integral_value(ROUND_CEILING)
