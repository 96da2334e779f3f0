"""The program `koordra`: commands that parse, call and print. The only part of koordra that may import every other.

main         the table of commands, and how errors end the program; options: what several commands have in common
processes/   controller, kubelet-plugin, nri: what runs in a cluster
cluster/     claims, devices, cordon-device: commands that ask the API server
manifests/   plan, explain, convert: commands that read manifest files
machine/     topology, top: commands about one machine
debug        debug dump, debug leftover-table
replay       replay, of OpenB lists and of the DLRM trace
output       how results are printed
"""
