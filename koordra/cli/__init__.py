"""The program `koordra`: commands that parse, call and print. The only part of koordra that may import every
other.

main             the table of commands, and how errors end the program
lazy_group       groups whose help imports none of their commands
options, output  what several commands have in common: options, and how results are printed
processes/       controller, kubelet-plugin, nri: what runs in a cluster
machine/         topology: about one machine
node/            commands about the node they run on
cluster/         claims, devices, explain, top, usage, cordon-device: commands that ask the API server
plan, convert    commands that read manifest files (manifest_files)
debug            debug dump, debug leftover-table
replay           replay, of OpenB lists and of the DLRM trace
"""
