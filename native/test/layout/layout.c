/* The layout of the shared region as JSON, for region.py to be compared with. */
#include <stdio.h>

#include "../../limiter/region.h"

#define NUMBER(name, value) printf("%s\"%s\": %llu", first++ ? ", " : "{", name, (unsigned long long)(value))
#define FIELD(type, field) NUMBER(#type "." #field, offsetof(struct type, field))

int main(void)
{
    int first = 0;
    NUMBER("version", REGION_VERSION);
    NUMBER("alive_files", ALIVE_FILES);
    NUMBER("policy_magic", POLICY_MAGIC);
    NUMBER("usage_magic", USAGE_MAGIC);
    NUMBER("devices_max", DEVICES_MAX);
    NUMBER("slots_max", SLOTS_MAX);
    NUMBER("kinds", KINDS);
    NUMBER("policy", sizeof(struct policy));
    NUMBER("policy_device", sizeof(struct policy_device));
    NUMBER("usage", sizeof(struct usage));
    NUMBER("slot", sizeof(struct slot));
    NUMBER("account", sizeof(struct account));
    FIELD(policy, version);
    FIELD(policy, bytes);
    FIELD(policy, flags);
    FIELD(policy, device_count);
    FIELD(policy, sequence);
    FIELD(policy, claim);
    FIELD(policy, outside);
    FIELD(policy, devices);
    FIELD(policy_device, limit);
    FIELD(policy_device, unseen);
    FIELD(policy_device, context_bytes);
    FIELD(policy_device, cores);
    FIELD(policy_device, priority);
    FIELD(policy_device, rate);
    FIELD(policy_device, lent);
    FIELD(policy_device, lent_until);
    FIELD(policy_device, device_time);
    FIELD(policy_device, seen_until);
    FIELD(policy_device, neighbours);
    FIELD(policy_device, elastic);
    FIELD(usage, version);
    FIELD(usage, bytes);
    FIELD(usage, loaded);
    FIELD(usage, enforcing);
    FIELD(usage, turned_away);
    FIELD(usage, reaped);
    FIELD(usage, refused_at);
    FIELD(usage, denied);
    FIELD(usage, bitmap);
    FIELD(usage, accounts);
    FIELD(usage, slots);
    FIELD(slot, generation);
    FIELD(slot, state);
    FIELD(slot, pid);
    FIELD(slot, pid_namespace);
    FIELD(slot, start_time);
    FIELD(slot, host_pid);
    FIELD(slot, driver_version);
    FIELD(slot, name);
    FIELD(slot, acknowledged);
    FIELD(slot, kinds);
    FIELD(usage, paces);
    NUMBER("pace", sizeof(struct pace));
    FIELD(pace, charged);
    FIELD(pace, correction);
    FIELD(pace, waited);
    FIELD(pace, active);
    FIELD(account, pending);
    FIELD(account, held);
    printf("}\n");
    return 0;
}
