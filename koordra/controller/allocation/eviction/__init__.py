"""Who loses devices to others, and how pods are evicted for it.

preemption            whom to evict so that a more urgent pod fits
displacement          claims that no pod uses give way to pods that wait
driver_release        nodes whose GPU driver is to be free are emptied, under the budgets, gangs whole
disruption_budgets    whether the budgets allow all evictions together, before the first
"""
