"""The plugin's gRPC side, as the kubelet sees it.

sockets           a gRPC server on a unix socket that comes back when its file vanishes
instance_lock     one owner of each pair of socket names
registration      plugins_registry: where the kubelet finds the driver
dra_service       NodePrepareResources and NodeUnprepareResources, v1 and v1beta1
health_service    DRAResourceHealth for the kubelet, grpc.health.v1 for probes
"""
