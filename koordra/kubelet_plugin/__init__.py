"""The node side: discovery, ResourceSlices, the kubelet gRPC services, Prepare and the CDI files."""
