"""The plugin's gRPC side, as the kubelet sees it.

sockets           where the two sockets are; a gRPC server on one that comes back when its file vanishes
dra_service       NodePrepareResources and NodeUnprepareResources, v1 and v1beta1; registration of the driver
plugin_metrics    what is counted of calls, claims and devices
health            the health of every device: DRAResourceHealth for the kubelet
"""
