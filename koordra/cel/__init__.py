"""Kubernetes' CEL environment for device selectors, over `cel-expr-python`. Pure.

expression ──> syntax        a tree, within the limits of the API server's parser
           ──> cost          what an evaluation costs at most, as the API server estimates it (call_cost: of
                             values and calls)
           ──> translation   the expression for the library
           ──> environment   the library with Kubernetes' declarations, compiled and evaluated
           ──> selectors     whether a device satisfies it; the door for everybody else

functions   what Kubernetes adds, and how values of its types travel through the library
"""
