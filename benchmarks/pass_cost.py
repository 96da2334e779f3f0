"""What the largest claim, pod and namespace that the API server takes make a pass of the controller cost:
calls of functions, as a ratio to the pass that serves one plain claim beside somebody else's."""

from __future__ import annotations

from tests.property.test_largest_objects import LARGEST, MOST, most_calls, plain


def main() -> None:
    median = most_calls(plain)
    print(f"  one plain claim: {median} calls; at most x{MOST} is allowed")
    for fill in LARGEST:
        print(f"  {fill.__name__.replace('_', ' '):<34} x{most_calls(fill) / median:.1f}")
