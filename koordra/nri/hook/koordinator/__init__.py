"""Koordinator mode: pods that Koordinator's scheduler placed.

annotation          its device-allocated annotation, as what a container holds
admission_policy    the policy that lets nobody but that scheduler set the annotation
pod_claims          whether a pod holds devices by claims, in which case the annotation is ignored
"""
