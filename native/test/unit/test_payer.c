/* Who pays for a launch, at which rate, and what is told of it; and what is not waited for. In virtual time. */
#include <sys/stat.h>

#include "../share.h"

static const struct load NOW_AND_THEN = {.kernel_ns = 100000, .idle_ns = 20 * MS};

struct claim {
    struct policy *policy;
    struct usage *usage;
};

/* Of the only tenant, which is yet to begin. */
static char claims[300];
static struct claim claim(const char *name, uint32_t rate)
{
    char path[340];
    snprintf(claims, sizeof claims, "%s/claims", folder);
    mkdir(claims, 0755);
    snprintf(path, sizeof path, "%s/%s", claims, name);
    region_make(path, (const uint8_t(*)[16])world->cards[0].uuid, 1, UNLIMITED, 0, 0);
    policy->devices[0].rate = rate;
    return (struct claim){policy, usage};
}

static struct claim only_claim(uint32_t rate, struct load load)
{
    start_shares(.tenants = 1, .blind = true);
    struct claim made = claim("only", rate);
    tenant_of(claims, load);
    return made;
}

/* Whichever the container's folder lists first. */
TEST(a_container_with_two_claims_of_a_card_has_the_time_of_both)
{
    start_shares(.tenants = 1, .blind = true);
    struct claim small = claim("small", 1000), large = claim("large", 4000);
    tenant_of(claims, PLAIN);
    pass(SECOND);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 47, 53);
    CHECK_BETWEEN((double)large.usage->paces[0].charged / (double)small.usage->paces[0].charged, 3, 5);
    end_shares();
}

static void all_of_the_card_beside_a_claim_without_a_limit(const char *first, uint32_t first_rate, const char *second, uint32_t second_rate)
{
    start_shares(.tenants = 1, .blind = true);
    struct claim made[] = {claim(first, first_rate), claim(second, second_rate)};
    struct policy_device *unlimited = &made[first_rate ? 1 : 0].policy->devices[0];
    unlimited->lent = 2000; /* means nothing where there is no limit */
    unlimited->lent_until = UINT64_MAX;
    tenant_of(claims, PLAIN);
    pass(SECOND);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 95, 100);
    end_shares();
}

/* A folder lists what was made last first, or by name. */
TEST(a_claim_without_a_limit_pays_for_the_other)
{
    all_of_the_card_beside_a_claim_without_a_limit("a", 1000, "b", 0);
}

TEST(a_claim_without_a_limit_pays_for_the_other_that_was_made_later)
{
    all_of_the_card_beside_a_claim_without_a_limit("b", 0, "a", 1000);
}

TEST(who_may_have_all_of_the_card_is_neither_charged_nor_held)
{
    struct claim whole = only_claim(10000, PLAIN);
    pass(SECOND);
    CHECK_EQUAL(whole.usage->paces[0].charged, 0);
    CHECK_EQUAL(whole.usage->paces[0].waited, 0);
    end_shares();
}

/* What is lent is never less than the share, and nothing once its time is over, be it all of the card. */
TEST(less_than_the_share_cannot_be_lent)
{
    struct claim lent = only_claim(3000, PLAIN);
    lent.policy->devices[0].lent = 1000;
    lent.policy->devices[0].lent_until = UINT64_MAX;
    pass(SECOND);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 27, 33);
    end_shares();
}

TEST(all_of_the_card_that_was_lent_is_given_back)
{
    struct claim lent = only_claim(3000, PLAIN);
    lent.policy->devices[0].lent = 10000;
    lent.policy->devices[0].lent_until = 1001 * SECOND;
    pass(900 * MS);
    CHECK_BETWEEN((double)device_time(0) / 9e6, 90, 100);
    pass(300 * MS);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 27, 33);
    end_shares();
}

/* Who sleeps for seconds says within NAP that it has seen a change; and what it waits is told. */
TEST(a_change_is_acknowledged_by_who_waits)
{
    struct claim deep = only_claim(100, LONG);
    pass(2 * SECOND + 30 * MS);
    uint64_t before = device_time(0);
    deep.policy->sequence = 7;
    pass(100 * MS);
    CHECK_EQUAL(deep.usage->slots[0].acknowledged, 7);
    CHECK_EQUAL(device_time(0), before); /* it has launched nothing meanwhile */
    pass(8 * SECOND);
    CHECK_BETWEEN((double)deep.usage->paces[0].waited / 1e9, 7, 10.2);
    end_shares();
}

TEST(a_change_is_acknowledged_in_every_claim_by_who_never_waits)
{
    start_shares(.tenants = 1, .blind = true);
    struct claim one = claim("one", 5000), other = claim("other", 5000);
    tenant_of(claims, NOW_AND_THEN);
    pass(SECOND);
    one.policy->sequence = other.policy->sequence = 7;
    pass(SECOND);
    CHECK_EQUAL(one.usage->slots[0].acknowledged, 7);
    CHECK_EQUAL(other.usage->slots[0].acknowledged, 7);
    CHECK_EQUAL(one.usage->paces[0].waited + other.usage->paces[0].waited, 0);
    end_shares();
}

static uint64_t launching(void *function, unsigned times)
{
    uint64_t began = world_now(world);
    for (unsigned at = 0; at < times; at++)
        OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    return world_now(world) - began;
}

static void launch_behind_what_never_ends(void *function, CUstream stream)
{
    (void)stream;
    CHECK_BETWEEN(launching(function, 50) / 1e6, 100, 150); /* the second one waits for the first one's measurement */
    world_sleep_until(world, world_now(world) + 2 * SECOND);
    CHECK_BETWEEN(launching(function, 1) / 1e6, 100, 150); /* for those that were launched since */
    world_sleep_until(world, world_now(world) + 2 * SECOND);
    CHECK_BETWEEN(launching(function, 1) / 1e6, 0, 10);
    _exit(0);
}

/* As where a kernel waits for the program: each wait for what is not measured is one of HOLD, and none for the same again. */
TEST(what_does_not_end_is_waited_for_once)
{
    start_shares(.tenants = 1, .blind = true);
    tenant(3000, (struct load){.kernel_ns = 3600 * SECOND, .own = launch_behind_what_never_ends});
    pass(10 * SECOND);
    CHECK_EQUAL(end_status(0), 0);
}
