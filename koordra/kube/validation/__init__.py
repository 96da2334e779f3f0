"""What the API server refuses of new claims, templates and DeviceClasses, in its own words. Pure.

refusal       of a whole object, with what the server fills in
requests      specs of claims and templates
classes       DeviceClasses; selectors, configuration, tolerations
fields        which there are; others are refused
metadata      names, labels, finalizers of every object
names         forms of names
field_errors  what is wrong with the fields of an object, and how that is told

Source of the rules: k8s.io/kubernetes pkg/apis/{core,resource}/validation of 1.37. The cluster double refuses
by the same code; tests/cluster/test_api_refusals compares it with a real server.
"""
