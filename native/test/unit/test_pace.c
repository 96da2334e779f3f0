/* Shares of device time that are kept, in virtual time. */
#include "../share.h"

struct share_of {
    uint32_t rate;
    struct load load;
};

/* Within 3 points of the share in any second. `blind`: the node sees nothing, so measurements alone do it. */
static void hold_shares(unsigned sms, bool blind, unsigned tenants, const struct share_of *shares)
{
    start_shares(.tenants = tenants, .sms = sms, .blind = blind, .neighbours = tenants - 1);
    for (unsigned at = 0; at < tenants; at++)
        tenant(shares[at].rate, shares[at].load);
    pass(SECOND / 2);
    struct parts parts = parts_over(3 * SECOND / 2, SECOND);
    for (unsigned at = 0; at < tenants; at++) {
        CHECK_BETWEEN(parts.least[at], shares[at].rate / 100.0 - 3, 100);
        CHECK_BETWEEN(parts.most[at], 0, shares[at].rate / 100.0 + 3);
    }
    end_shares();
}

#define HOLD_AT(name, sms, blind, ...)                                                                    \
    TEST(name##_at_##sms##_sms)                                                                           \
    {                                                                                                     \
        const struct share_of shares[] = {__VA_ARGS__};                                                   \
        hold_shares(sms, blind, sizeof shares / sizeof shares[0], shares);                                \
    }
#define HOLD(name, blind, ...) HOLD_AT(name, 132, blind, __VA_ARGS__)
#define HOLD_AT_ALL(name, blind, ...)      \
    HOLD_AT(name, 1, blind, __VA_ARGS__)   \
    HOLD_AT(name, 108, blind, __VA_ARGS__) \
    HOLD_AT(name, 132, blind, __VA_ARGS__) \
    HOLD_AT(name, 188, blind, __VA_ARGS__)

HOLD_AT_ALL(thirty_alone, true, {3000, PLAIN})
HOLD_AT_ALL(thirty_and_seventy, false, {3000, PLAIN}, {7000, HALF})
HOLD_AT_ALL(ten_and_ninety, true, {1000, GRAPH}, {9000, PLAIN})
HOLD_AT_ALL(four_quarters, false, {2500, SHORT}, {2500, LONG}, {2500, GRAPH}, {2500, BURST})
HOLD(thirty_of_short_alone, true, {3000, SHORT})
HOLD(thirty_of_long_alone, true, {3000, LONG})
HOLD(thirty_of_bursts_alone, true, {3000, BURST})
HOLD(thirty_and_seventy_of_long_and_short, false, {3000, LONG}, {7000, SHORT})
HOLD(thirty_and_seventy_of_short_and_long, false, {3000, SHORT}, {7000, LONG})
HOLD(thirty_and_seventy_by_measurements_alone, true, {3000, PLAIN}, {7000, HALF})
HOLD(thirty_and_seventy_of_bursts, true, {3000, BURST}, {7000, BURST})
HOLD_AT_ALL(ten_and_ninety_of_long, false, {1000, LONG}, {9000, LONG})

/* Below 10 %: within 30 % of the share over 10 s. */
TEST(one_one_and_ninety_eight)
{
    start_shares(.tenants = 3, .blind = true, .neighbours = 2);
    tenant(100, PLAIN);
    tenant(100, SHORT);
    tenant(9800, PLAIN);
    pass(SECOND);
    struct parts parts = parts_over(10 * SECOND, 10 * SECOND);
    CHECK_BETWEEN(parts.mean[0], 0.7, 1.3);
    CHECK_BETWEEN(parts.mean[1], 0.7, 1.3);
    CHECK_BETWEEN(parts.mean[2], 95, 100);
    end_shares();
}

TEST(twenty_of_one_percent)
{
    start_shares(.tenants = 20, .blind = true, .neighbours = 19);
    for (int at = 0; at < 20; at++)
        tenant(100, at % 2 ? PLAIN : SHORT);
    pass(SECOND);
    struct parts parts = parts_over(10 * SECOND, 10 * SECOND);
    for (int at = 0; at < 20; at++)
        CHECK_BETWEEN(parts.mean[at], 0.7, 1.3);
    end_shares();
}

/* 3.3: watched every 120 ms and moved in steps, a limit takes seconds. */
TEST(a_changed_limit_holds_within_200_ms)
{
    start_shares(.tenants = 2, .blind = true, .neighbours = 1);
    struct policy *first = tenant(9000, BURST), *second = tenant(1000, LONG);
    pass(SECOND);
    first->devices[0].rate = 1000;
    second->devices[0].rate = 9000;
    pass(200 * MS);
    struct parts parts = parts_over(SECOND, SECOND);
    CHECK_BETWEEN(parts.mean[0], 7, 13);
    CHECK_BETWEEN(parts.mean[1], 80, 93);
    end_shares();
}

/* A debt that was made at 1 % is not paid at 1 % any more. */
TEST(a_raised_limit_holds_within_200_ms)
{
    start_shares(.tenants = 1, .blind = true);
    struct policy *only = tenant(100, LONG);
    pass(3 * SECOND + 30 * MS);
    only->devices[0].rate = 5000;
    pass(200 * MS);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 47, 53);
    end_shares();
}

/* Elastic: what others leave idle is lent for a time, and is given back when the time is over, whoever has died. */
TEST(what_is_lent_is_used_and_given_back)
{
    start_shares(.tenants = 2, .blind = true, .neighbours = 1);
    struct policy *elastic = tenant(3000, PLAIN);
    tenant(7000, (struct load){.kernel_ns = 200000, .kernels = 4, .from = 1002 * SECOND});
    elastic->devices[0].lent = 9500;
    elastic->devices[0].lent_until = 1001900 * MS;
    pass(500 * MS);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 92, 98);
    pass(600 * MS);
    struct parts parts = parts_over(SECOND, SECOND);
    CHECK_BETWEEN(parts.mean[0], 27, 33);
    CHECK_BETWEEN(parts.mean[1], 67, 73);
    end_shares();
}

/* 3.3: several processes of a claim have one budget. */
TEST(processes_of_a_claim_share_its_budget)
{
    start_shares(.tenants = 4, .blind = true, .neighbours = 1);
    tenant(3000, PLAIN);
    companion(0, SHORT);
    companion(0, GRAPH);
    tenant(5000, BURST);
    pass(SECOND);
    struct parts parts = parts_over(2 * SECOND, 2 * SECOND);
    CHECK_BETWEEN(parts.mean[0] + parts.mean[1] + parts.mean[2], 27, 33);
    CHECK_BETWEEN(parts.mean[3], 47, 53);
    for (int at = 0; at < 3; at++)
        CHECK_BETWEEN(parts.mean[at], 2, 30);
    end_shares();
}

/* A tenant that is killed while it launches takes nothing along that others would wait for. */
TEST(who_is_killed_while_launching_leaves_the_budget_whole)
{
    start_shares(.tenants = 3, .blind = true);
    tenant(4000, PLAIN);
    companion(0, BURST);
    companion(0, LONG);
    pass(SECOND);
    kill_tenant(1);
    kill_tenant(2);
    pass(200 * MS);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 37, 43);
    end_shares();
}

/* 3.9: what is idle for a minute has no minute to make up for. */
TEST(idle_time_is_not_saved_up)
{
    start_shares(.tenants = 1, .blind = true);
    tenant(1000, (struct load){.kernel_ns = 100000, .kernels = 5000, .idle_ns = 60 * SECOND});
    pass(64 * SECOND);
    CHECK_BETWEEN(device_time(0) / 1e9, 0.4, 0.5); /* a half in 5 s, and nothing since */
    while (device_time(0) <= 502 * MS)
        pass(100 * MS);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).most[0], 7, 13);
    end_shares();
}

/* Kernels of several streams run beside each other, and each is measured as if it were alone: the node sees what it is really. */
TEST(kernels_beside_each_other_are_paid_once)
{
    start_shares(.tenants = 1);
    tenant(3000, BESIDE);
    pass(2 * SECOND);
    struct parts parts = parts_over(2 * SECOND, SECOND);
    CHECK_BETWEEN(parts.least[0], 27, 33);
    CHECK_BETWEEN(parts.most[0], 27, 33);
    end_shares();
}

/* The time of a host node is not the card's. */
TEST(graphs_that_wait_for_the_host_pay_for_the_card_alone)
{
    start_shares(.tenants = 2, .neighbours = 1);
    tenant(3000, (struct load){.kernel_ns = 100000, .kernels = 10, .graph = true, .host_ns = 1000000});
    tenant(4000, PLAIN);
    pass(2 * SECOND);
    struct parts parts = parts_over(2 * SECOND, SECOND);
    CHECK_BETWEEN(parts.least[0], 27, 33);
    CHECK_BETWEEN(parts.most[0], 27, 33);
    CHECK_BETWEEN(parts.mean[1], 37, 43);
    end_shares();
}

/* Several contexts at once, as under MPS. */
TEST(shares_hold_where_the_card_knows_no_turns)
{
    start_shares(.tenants = 2, .concurrent = true, .blind = true, .neighbours = 1);
    tenant(3000, PLAIN);
    tenant(5000, PLAIN);
    pass(SECOND);
    struct parts parts = parts_over(2 * SECOND, SECOND);
    CHECK_BETWEEN(parts.mean[0], 27, 33);
    CHECK_BETWEEN(parts.mean[1], 47, 53);
    end_shares();
}

/* 3.8, row 4: a driver that tells no utilisation (0 for all) switches nothing off. */
TEST(a_node_that_sees_nothing_switches_nothing_off)
{
    start_shares(.tenants = 1, .blind = true);
    struct policy *only = tenant(3000, PLAIN);
    for (int at = 0; at < 20; at++) {
        pass(50 * MS);
        only->devices[0].seen_until += 50 * MS;
    }
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 27, 33);
    end_shares();
}

/* Kernels of the same function and grid that take several times as long at times. */
TEST(kernels_that_vary_are_paid_by_what_they_take)
{
    start_shares(.tenants = 1, .blind = true);
    tenant(3000, (struct load){.kernel_ns = 50000, .spread = 5, .kernels = 16});
    pass(2 * SECOND);
    CHECK_BETWEEN(parts_over(2 * SECOND, SECOND).mean[0], 27, 33);
    end_shares();
}

TEST(without_a_limit_all_of_the_card_is_used)
{
    start_shares(.tenants = 2, .blind = true);
    tenant(0, PLAIN);
    tenant(10000, (struct load){.kernel_ns = 200000, .kernels = 4, .from = 1003 * SECOND});
    pass(SECOND);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 95, 100);
    end_shares();
}

/* 3.3: off where nobody competes. */
TEST(a_capped_tenant_alone_is_capped)
{
    start_shares(.tenants = 1, .blind = true);
    tenant(3000, PLAIN);
    pass(SECOND / 2);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 27, 33);
    end_shares();
}

/* 3.3: off where the host's pid is not known. */
TEST(a_share_of_time_is_kept_without_a_host_pid)
{
    start_shares(.tenants = 1, .blind = true);
    tenant(2000, GRAPH);
    pass(SECOND / 2);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 17, 23);
    end_shares();
}

/* 3.3: as many tokens as blocks, however long they take. */
TEST(a_launch_costs_what_it_takes_not_what_its_grid_is)
{
    start_shares(.tenants = 2, .blind = true);
    tenant(3000, (struct load){.kernel_ns = 5000, .kernels = 40});
    tenant(3000, (struct load){.kernel_ns = 1000000, .blocks = 1});
    pass(SECOND / 2);
    struct parts parts = parts_over(SECOND, SECOND);
    CHECK_BETWEEN(parts.mean[0], 24, 33);
    CHECK_BETWEEN(parts.mean[1], 27, 33);
    end_shares();
}

/* 3.3, row 4: steps that grow with the square of the multiprocessors leave a large card unlimited. */
TEST(a_large_card_is_limited_as_a_small_one_is)
{
    start_shares(.tenants = 2, .sms = 188, .blind = true, .neighbours = 1);
    tenant(3000, PLAIN);
    tenant(7000, PLAIN);
    pass(SECOND / 2);
    struct parts parts = parts_over(SECOND, SECOND);
    CHECK_BETWEEN(parts.mean[0], 27, 33);
    CHECK_BETWEEN(parts.mean[1], 67, 73);
    end_shares();
}

static void launch_and_look(void *function, CUstream stream)
{
    static uint64_t before;
    static unsigned launched;
    OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamSynchronize(stream));
    CHECK(++launched < 50 || world_now(world) - before < 6 * MS);
    before = world_now(world);
    if (launched == 300)
        _exit(0);
}

/* 3.3: waits of 10 ms where a millisecond is the matter. At 50 % a kernel of 1 ms comes every 2 ms. */
TEST(nobody_waits_longer_than_it_takes)
{
    start_shares(.tenants = 1, .blind = true);
    tenant(5000, (struct load){.kernel_ns = 1000000, .own = launch_and_look});
    pass(3 * SECOND);
    CHECK_EQUAL(end_status(0), 0);
}

/* Launches return before the work is done: a program could have launched an hour's before anything was measured. */
TEST(a_program_cannot_run_ahead_of_what_is_known)
{
    start_shares(.tenants = 1, .blind = true);
    tenant(3000, (struct load){.kernel_ns = 10000000, .asynchronous = true});
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 25, 35);
    end_shares();
}

/* The words of the region are wide enough for a node that is not booted for years. */
TEST(a_share_holds_after_years)
{
    start_shares(.tenants = 1, .blind = true, .uptime_s = 5 * 365 * 86400);
    tenant(3000, PLAIN);
    pass(SECOND);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 27, 33);
    end_shares();
}

/* Samples in whole percent say little of 2 %, one by one; together they do. */
TEST(small_shares_are_corrected_too)
{
    start_shares(.tenants = 1);
    tenant(200, (struct load){.kernel_ns = 100000, .blocks = 30, .kernels = 8, .streams = 4});
    pass(20 * SECOND);
    CHECK_BETWEEN(parts_over(10 * SECOND, 10 * SECOND).mean[0], 1.4, 2.6);
    end_shares();
}
