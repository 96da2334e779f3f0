"""The plugin's gRPC side, as the kubelet sees it.

sockets           where the two sockets are; a gRPC server on one that comes back when its file vanishes
plugin_servers    the two servers, in the order in which they start and stop
dra_service       NodePrepareResources and NodeUnprepareResources, v1 and v1beta1; registration of the driver
plugin_metrics    what is counted of calls, claims and devices
node_readings     what a reading of the machine does: devices are guarded, then known, then told
restoring         sockets and files that vanished are there again
health            the health of every device: DRAResourceHealth for the kubelet
"""
