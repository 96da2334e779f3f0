"""What is under which address. Pure: an address and a snapshot make a page.

address    which page an address is, and what makes it
fleet      the cards of all nodes, by block and model
waiting    who waits, and why
machine    a node: its picture, devices, who has them and how they are kept apart
objects    a claim and a pod, in the words of `koordra explain`
find       nodes, claims, pods and gangs by a part of their names
gangs      the gangs, and where in the network their members are
"""
