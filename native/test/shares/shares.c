/* Tenants of one card in virtual time, whose node is another process: it writes their policies and asks NVML, while time stands still.
 *
 *     shares SMS [CLAIMS LOAD]...   CLAIMS: a folder with the claim's folder in it; LOAD: a word of LOADS
 *
 * A line of its stdin is how many ns shall pass; then, and at first, it prints for each tenant its pid and its device time in ns, on one
 * line. It ends with its stdin. */
#include "../share.h"

#define NAMED(load) {#load, &load}
static const struct {
    const char *name;
    const struct load *load;
} LOADS[] = {NAMED(SHORT), NAMED(PLAIN), NAMED(LONG), NAMED(BURST), NAMED(HALF), NAMED(GRAPH), NAMED(BESIDE)};

static struct load load_of(const char *name)
{
    for (unsigned at = 0; at < sizeof LOADS / sizeof LOADS[0]; at++)
        if (strcmp(LOADS[at].name, name) == 0)
            return *LOADS[at].load;
    fprintf(stderr, "there is no load %s\n", name);
    exit(2);
}

static void tell(unsigned tenants)
{
    for (unsigned at = 0; at < tenants; at++)
        printf("%d %llu ", (int)tenant_pid(at), (unsigned long long)device_time(at));
    printf("\n");
    fflush(stdout);
}

int main(int count, char **arguments)
{
    unsigned tenants = count > 2 ? (unsigned)(count - 2) / 2 : 0;
    char line[40];
    snprintf(folder, sizeof folder, "%s", getenv("KOORDRA_TEST_FOLDER"));
    if (!tenants)
        return 2;
    start_shares(.tenants = tenants, .sms = (unsigned)atoi(arguments[1]), .blind = true);
    for (unsigned at = 0; at < tenants; at++)
        tenant_of(arguments[2 + 2 * at], load_of(arguments[3 + 2 * at]));
    tell(tenants);
    while (fgets(line, sizeof line, stdin)) {
        world_sleep_until(world, world_now(world) + strtoull(line, NULL, 10));
        tell(tenants);
    }
    end_shares();
    return 0;
}
