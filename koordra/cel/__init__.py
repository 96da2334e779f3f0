"""Kubernetes' CEL environment for device selectors, over `cel-expr-python`. Pure.

selectors   whether a device satisfies an expression; the only module that knows the library
tokens      expressions as lexemes: what they read, how deep they nest
macros      what Kubernetes' CEL has and the library has not, rewritten
functions   the functions that Kubernetes adds: lists, addresses, urls, formats, formatting (of strings), semver
"""
