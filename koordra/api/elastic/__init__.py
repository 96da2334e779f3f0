"""Elastic GPU's objects (group elasticgpu.io): `elastic_gpu` classes and claims, `elastic_pods` the pods that
name them. Pure."""
