"""What the server fills in of a pod's spec, in pods and in the templates of workloads. Pure."""

from __future__ import annotations

from koordra.api.objects import Object


def fill(spec: Object) -> None:
    """The defaults that pods and pod templates share."""
    for field, value in {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
    }.items():
        spec.setdefault(field, value)
    spec.setdefault("securityContext", {})
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        _fill_container(container)


def requests_from_limits(spec: Object) -> None:
    """In pods only: what is limited and not requested is requested."""
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        resources = container["resources"]
        for name, value in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, value)


def _fill_container(container: Object) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    image = str(container.get("image", ""))
    latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if latest and "@" not in image else "IfNotPresent")
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        source = (variable.get("valueFrom") or {}).get("fieldRef")
        if source is not None:
            source.setdefault("apiVersion", "v1")
