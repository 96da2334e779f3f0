"""`koordra dashboard`: the cluster as pages that a browser shows, read-only.

    watches ──▶ live ── when somebody looks: fleet, snapshot ──▶ pages ──▶ server ──▶ browser

live       the objects, one watch a kind however many look, and what is worked out of them at a bounded cost
fleet      cards by node, block and model; cells: where they come from
snapshot   one moment: what `koordra explain` would answer from, and who waits
waiting    who waits, those with the same trouble together
markup     escaped HTML, the frame of a page and its style
pages/     what is under which address
access     whose request it is, where it does not come from this machine
server     HTTP: GET alone, bounded connections, headers that forbid everything that a page does not need
"""
