"""Pods of the node's own programs, as their projects ship them: what of their manifests an NRI hook can see.

The facts are those of the manifests: gpu-operator (assets/state-*), dcgm-exporter (chart and plain manifest),
node-problem-detector (deployment/, chart), Calico (manifests/calico.yaml, tigera-operator), Multus
(multus-daemonset-thick), csi-driver-nfs (deploy/csi-nfs-node.yaml), Cilium (chart), kube-proxy (kubeadm),
node-exporter (kube-prometheus). Images bake what their Dockerfiles say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NODE_CRITICAL = 2_000_001_000
ALL_DEVICES = (("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_DRIVER_CAPABILITIES", "all"))
NO_DEVICES = (("NVIDIA_VISIBLE_DEVICES", "void"),)


@dataclass(frozen=True, slots=True)
class ShippedContainer:
    """`volumes` are hostPath volumes: (path on the host, path in the container); `image_env`: the image's."""

    name: str
    volumes: Sequence[tuple[str, str]] = ()
    privileged: bool = True
    image_env: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ShippedPod:
    name: str
    namespace: str
    containers: Sequence[ShippedContainer]
    priority: int = NODE_CRITICAL
    host_network: bool = False

    def __str__(self) -> str:
        return self.name


_RUN_NVIDIA = ("/run/nvidia", "/run/nvidia")
_HOST = ("/", "/host")
_VALIDATIONS = ("/run/nvidia/validations", "/run/nvidia/validations")
_TOOLKIT_VALIDATION = ShippedContainer("toolkit-validation", [_RUN_NVIDIA], image_env=ALL_DEVICES)

GPU_OPERATOR = (
    ShippedPod(
        "nvidia-driver-daemonset",
        "gpu-operator",
        [
            ShippedContainer(
                "k8s-driver-manager",
                [_RUN_NVIDIA, _HOST, ("/sys", "/sys"), ("/run/mellanox/drivers", "/run/mellanox/drivers")],
                env=NO_DEVICES,
            ),
            ShippedContainer(
                "nvidia-driver-ctr",
                [
                    _RUN_NVIDIA,
                    ("/run/nvidia-fabricmanager", "/run/nvidia-fabricmanager"),
                    ("/run/nvidia-topologyd", "/run/nvidia-topologyd"),
                    ("/var/log", "/var/log"),
                    ("/dev/log", "/dev/log"),
                    ("/sys/devices/system", "/sys/devices/system"),
                    ("/run/nvidia/driver/lib/firmware", "/lib/firmware"),
                ],
            ),
            ShippedContainer("nvidia-peermem-ctr", [_RUN_NVIDIA, ("/var/log", "/var/log")]),
            ShippedContainer("nvidia-fs-ctr", [_RUN_NVIDIA, ("/dev/log", "/dev/log")]),
        ],
    ),
    ShippedPod(
        "nvidia-container-toolkit-daemonset",
        "gpu-operator",
        [
            ShippedContainer(
                "driver-validation",
                [
                    ("/run/nvidia/driver", "/run/nvidia/driver"),
                    _VALIDATIONS,
                    _HOST,
                    ("/dev/char", "/host-dev-char"),
                ],
                image_env=NO_DEVICES,
            ),
            ShippedContainer(
                "nvidia-container-toolkit-ctr",
                [
                    ("/run/nvidia/toolkit", "/run/nvidia/toolkit"),
                    ("/usr/local/nvidia", "/usr/local/nvidia"),
                    ("/run/containers/oci/hooks.d", "/usr/share/containers/oci/hooks.d"),
                    ("/run/nvidia/driver", "/driver-root"),
                    _HOST,
                    ("/var/run/cdi", "/var/run/cdi"),
                ],
                image_env=NO_DEVICES,
                env=NO_DEVICES,
            ),
        ],
    ),
    ShippedPod(
        "nvidia-operator-validator",
        "gpu-operator",
        [
            ShippedContainer(
                "driver-validation", [("/run/nvidia/driver", "/run/nvidia/driver"), _VALIDATIONS, _HOST]
            ),
            ShippedContainer("cuda-validation", [_VALIDATIONS], image_env=ALL_DEVICES),
        ],
    ),
    ShippedPod(
        "nvidia-device-plugin-daemonset",
        "gpu-operator",
        [
            ShippedContainer(
                "nvidia-device-plugin",
                [
                    ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins"),
                    _VALIDATIONS,
                    ("/run/nvidia/driver", "/driver-root"),
                    _HOST,
                    ("/var/run/cdi", "/var/run/cdi"),
                    ("/run/nvidia/mps", "/mps"),
                    ("/run/nvidia/mps/shm", "/dev/shm"),
                ],
                image_env=ALL_DEVICES,
                env=ALL_DEVICES,
            )
        ],
    ),
    ShippedPod(
        "nvidia-mig-manager",
        "gpu-operator",
        [
            ShippedContainer(
                "nvidia-mig-manager", [_VALIDATIONS, ("/sys", "/sys"), _HOST], image_env=ALL_DEVICES
            )
        ],
    ),
    ShippedPod(
        "gpu-feature-discovery",
        "gpu-operator",
        [
            _TOOLKIT_VALIDATION,
            ShippedContainer(
                "gpu-feature-discovery",
                [("/etc/kubernetes/node-feature-discovery/features.d",) * 2, ("/sys", "/sys")],
                image_env=ALL_DEVICES,
            ),
        ],
    ),
    ShippedPod(
        "nvidia-dcgm-exporter",
        "gpu-operator",
        [
            _TOOLKIT_VALIDATION,
            ShippedContainer(
                "nvidia-dcgm-exporter",
                [("/var/lib/kubelet/pod-resources",) * 2],
                image_env=ALL_DEVICES,
            ),
        ],
    ),
)

DCGM_EXPORTER = ShippedPod(
    "dcgm-exporter",
    "monitoring",
    [
        ShippedContainer(
            "dcgm-exporter",
            [("/var/lib/kubelet/pod-resources",) * 2],
            privileged=False,
            image_env=ALL_DEVICES,
        )
    ],
)
"""By its own chart (its plain manifest names no priority): not privileged, and it gets the cards of NVIDIA's
runtime by what its image bakes."""

NODE_PROBLEM_DETECTOR = ShippedPod(
    "node-problem-detector",
    "kube-system",
    [
        ShippedContainer(
            "node-problem-detector",
            [("/var/log", "/var/log"), ("/dev/kmsg", "/dev/kmsg"), ("/etc/localtime", "/etc/localtime")],
        )
    ],
    priority=0,
)

CALICO = ShippedPod(
    "calico-node",
    "calico-system",
    [
        ShippedContainer(
            "upgrade-ipam", [("/var/lib/cni/networks",) * 2, ("/opt/cni/bin", "/host/opt/cni/bin")]
        ),
        ShippedContainer(
            "install-cni", [("/opt/cni/bin", "/host/opt/cni/bin"), ("/etc/cni/net.d", "/host/etc/cni/net.d")]
        ),
        ShippedContainer(
            "ebpf-bootstrap", [("/sys/fs", "/sys/fs"), ("/var/run/calico",) * 2, ("/proc", "/nodeproc")]
        ),
        ShippedContainer(
            "calico-node",
            [
                ("/lib/modules",) * 2,
                ("/run/xtables.lock",) * 2,
                ("/var/run/calico",) * 2,
                ("/var/lib/calico",) * 2,
                ("/var/run/nodeagent",) * 2,
                ("/sys/fs/bpf",) * 2,
                ("/var/log/calico/cni",) * 2,
            ],
        ),
    ],
    host_network=True,
)

CILIUM = ShippedPod(
    "cilium",
    "kube-system",
    [
        ShippedContainer("mount-bpf-fs", [("/sys/fs/bpf",) * 2]),
        ShippedContainer(
            "cilium-agent",
            [
                ("/proc/sys/net", "/host/proc/sys/net"),
                ("/sys/fs/bpf",) * 2,
                ("/var/run/cilium",) * 2,
                ("/var/run/cilium/netns",) * 2,
                ("/etc/cni/net.d", "/host/etc/cni/net.d"),
                ("/lib/modules",) * 2,
                ("/run/xtables.lock",) * 2,
            ],
            privileged=False,
        ),
    ],
    host_network=True,
)

MULTUS = ShippedPod(
    "kube-multus-ds",
    "kube-system",
    [
        ShippedContainer(
            "kube-multus",
            [
                ("/etc/cni/net.d", "/host/etc/cni/net.d"),
                ("/opt/cni/bin",) * 2,
                ("/run", "/host/run"),
                ("/var/lib/cni/multus",) * 2,
                ("/var/lib/kubelet",) * 2,
                ("/run/k8s.cni.cncf.io",) * 2,
                ("/run/netns",) * 2,
                ("/", "/hostroot"),
            ],
        ),
    ],
    priority=0,
    host_network=True,
)

CSI_NFS = ShippedPod(
    "csi-nfs-node",
    "kube-system",
    [
        ShippedContainer(
            "node-driver-registrar",
            [("/var/lib/kubelet/plugins_registry", "/registration")],
            privileged=False,
        ),
        ShippedContainer(
            "nfs",
            [("/var/lib/kubelet/plugins/csi-nfsplugin", "/csi"), ("/var/lib/kubelet/pods",) * 2],
        ),
    ],
    host_network=True,
)

KUBE_PROXY = ShippedPod(
    "kube-proxy",
    "kube-system",
    [ShippedContainer("kube-proxy", [("/run/xtables.lock",) * 2, ("/lib/modules",) * 2])],
    host_network=True,
)

NODE_EXPORTER = ShippedPod(
    "node-exporter",
    "monitoring",
    [
        ShippedContainer(
            "node-exporter",
            [("/sys", "/host/sys"), ("/", "/host/root")],
            privileged=False,
        )
    ],
    host_network=True,
)

SHIPPED = (
    *GPU_OPERATOR,
    DCGM_EXPORTER,
    NODE_PROBLEM_DETECTOR,
    CALICO,
    CILIUM,
    MULTUS,
    CSI_NFS,
    KUBE_PROXY,
    NODE_EXPORTER,
)
