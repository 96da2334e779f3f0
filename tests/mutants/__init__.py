"""Mutants: small errors put into the code that decides, each of which some test of `make test` has to notice.

    areas.py       which modules are judged, by area
    operators.py   which errors there are, and where they fit
    named.py       errors that must be noticed, one by one
    judge.py       one pytest session that is collected once; coverage says which tests run which line; a fork
                   for each mutant
    __main__.py    `make mutants`: the named ones, a seeded sample, and the verdict

mutmut (3.8) collects the tests anew for every mutant and changes functions alone, no table of weights;
cosmic-ray starts a process for each. benchmarks/results/mutants.md has the mutants that live, each with the
reason why it may.
"""
