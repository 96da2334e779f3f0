"""Field tables of resource.k8s.io/v1 (Kubernetes 1.37) in the notation of `schema.py`."""

from __future__ import annotations

from typing import Final

RESOURCE: Final = """
ResourceSlice: apiVersion string, kind string, metadata ObjectMeta, spec! ResourceSliceSpec
ResourceSliceSpec: allNodes bool, devices []Device, driver! string, nodeName string,
    nodeSelector NodeSelector, partitionTypeAttribute string, perDeviceNodeSelection bool, pool! ResourcePool,
    sharedCounters []CounterSet, skipNodeOperations []string
Device: allNodes bool, allowMultipleAllocations bool, attributes {}DeviceAttribute,
    bindingConditions []string, bindingFailureConditions []string, bindsToNode bool,
    capacity {}DeviceCapacity, consumesCounters []DeviceCounterConsumption, name! string,
    nodeAllocatableResources {}NodeAllocatableResource, nodeName string, nodeSelector NodeSelector,
    taints []DeviceTaint
DeviceAttribute: bool bool, bools []bool, int int, ints []int, string string, strings []string,
    version string, versions []string
DeviceCapacity: requestPolicy CapacityRequestPolicy, value! quantity
CapacityRequestPolicy: default quantity, validRange CapacityRequestPolicyRange, validValues []quantity
CapacityRequestPolicyRange: max quantity, min! quantity, step quantity
DeviceCounterConsumption: compatibilityGroups []string, counterSet! string, counters! {}Counter
Counter: value! quantity
NodeAllocatableResource: mapping NodeAllocatableMapping, overhead NodeAllocatableOverhead
NodeAllocatableMapping: capacityKey string, capacityMultiplier string, deviceMultiplier string
NodeAllocatableOverhead: perContainer quantity, perPod quantity
DeviceTaint: effect! string, key! string, timeAdded time, value string
ResourcePool: generation! int, name! string, resourceSliceCount! int
CounterSet: counters! {}Counter, name! string
ResourceClaim: apiVersion string, kind string, metadata ObjectMeta, spec ResourceClaimSpec,
    status ResourceClaimStatus
ResourceClaimSpec: devices DeviceClaim
DeviceClaim: config []DeviceClaimConfiguration, constraints []DeviceConstraint, requests []DeviceRequest
DeviceClaimConfiguration: opaque OpaqueDeviceConfiguration, requests []string
OpaqueDeviceConfiguration: driver! string, parameters! any
DeviceConstraint: distinctAttribute string, matchAttribute string, requests []string
DeviceRequest: exactly ExactDeviceRequest, firstAvailable []DeviceSubRequest, name! string
ExactDeviceRequest: adminAccess bool, allocationMode string, capacity CapacityRequirements, count int,
    derivedAttributes []DeviceDerivedAttribute, deviceClassName! string, selectors []DeviceSelector,
    tolerations []DeviceToleration
CapacityRequirements: requests {}quantity
DeviceDerivedAttribute: expression! string, name! string
DeviceSelector: cel CELDeviceSelector
CELDeviceSelector: expression! string
DeviceToleration: effect string, key string, operator string, tolerationSeconds int, value string
DeviceSubRequest: allocationMode string, capacity CapacityRequirements, count int,
    derivedAttributes []DeviceDerivedAttribute, deviceClassName! string, name! string,
    selectors []DeviceSelector, tolerations []DeviceToleration
ResourceClaimStatus: allocation AllocationResult, devices []AllocatedDeviceStatus(driver,device,pool,shareID),
    reservedFor []ResourceClaimConsumerReference<uid>
AllocationResult: allocationTimestamp time, devices DeviceAllocationResult, nodeSelector NodeSelector
DeviceAllocationResult: config []DeviceAllocationConfiguration, results []DeviceRequestAllocationResult
DeviceAllocationConfiguration: opaque OpaqueDeviceConfiguration, requests []string, source! string
DeviceRequestAllocationResult: adminAccess bool, bindingConditions []string,
    bindingFailureConditions []string, consumedCapacity {}quantity, device! string, driver! string,
    pool! string, request! string, shareID string, skipNodeOperations []string, tolerations []DeviceToleration
AllocatedDeviceStatus: conditions []Condition(type), data any, device! string, driver! string,
    networkData NetworkDeviceData, pool! string, shareID string
Condition: lastTransitionTime! time, message! string, observedGeneration int, reason! string, status! string,
    type! string
NetworkDeviceData: hardwareAddress string, interfaceName string, ips []string
ResourceClaimConsumerReference: apiGroup string, name! string, resource! string, uid! string
ResourceClaimTemplate: apiVersion string, kind string, metadata ObjectMeta, spec ResourceClaimTemplateSpec
ResourceClaimTemplateSpec: metadata ObjectMeta, spec ResourceClaimSpec
DeviceClass: apiVersion string, kind string, metadata ObjectMeta, spec DeviceClassSpec
DeviceClassSpec: config []DeviceClassConfiguration, extendedResourceName string, selectors []DeviceSelector
DeviceClassConfiguration: opaque OpaqueDeviceConfiguration
DeviceTaintRule: apiVersion string, kind string, metadata ObjectMeta, spec! DeviceTaintRuleSpec,
    status DeviceTaintRuleStatus
DeviceTaintRuleSpec: deviceSelector DeviceTaintSelector, taint! DeviceTaint
DeviceTaintSelector: device string, driver string, pool string
DeviceTaintRuleStatus: conditions []Condition<type>
"""
