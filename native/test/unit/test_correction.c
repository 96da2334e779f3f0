/* What the node sees of a claim corrects what the claim charges itself, within bounds: here the node says what the test wants. */
#include "../share.h"

#define LOOK (100 * MS)

/* One claim at this rate, of which the node sees `times` thousandths of what it really has, and of that only what comes to whole
 * `lumps`; its part of the last 10 s of 30, in percent. */
static double part_where_the_node_sees(uint32_t rate, uint64_t times, uint64_t lumps)
{
    start_shares(.tenants = 1, .blind = true);
    struct policy_device *share = &tenant(rate, PLAIN)->devices[0];
    uint64_t began = 0;
    for (unsigned at = 0; at < 300; at++) {
        pass(LOOK);
        uint64_t seen = device_time(0) * times / 1000;
        atomic_store(&share->device_time, seen - seen % lumps);
        atomic_store(&share->seen_until, (at + 1) * LOOK);
        if (at == 199)
            began = device_time(0);
    }
    double part = (double)(device_time(0) - began) / 1e8;
    end_shares();
    return part;
}

TEST(what_the_node_sees_is_what_is_charged)
{
    CHECK_BETWEEN(part_where_the_node_sees(3000, 1000, 1), 29, 31);
}

/* As where memory is filled between launches. */
TEST(who_has_twice_what_it_charges_gets_half)
{
    CHECK_BETWEEN(part_where_the_node_sees(3000, 2000, 1), 13, 17);
}

TEST(nobody_is_charged_more_than_four_times)
{
    CHECK_BETWEEN(part_where_the_node_sees(4000, 20000, 1), 9, 11);
}

/* As where kernels run beside each other. */
TEST(who_has_half_of_what_it_charges_gets_twice)
{
    CHECK_BETWEEN(part_where_the_node_sees(2000, 500, 1), 37, 43);
}

TEST(nobody_is_charged_less_than_a_sixteenth)
{
    CHECK_BETWEEN(part_where_the_node_sees(200, 5, 1), 28, 36);
}

/* Whole percents of a sample: a third of 1 % is nothing twice, and 1 % then. */
TEST(what_is_seen_in_lumps_is_summed_up)
{
    CHECK_BETWEEN(part_where_the_node_sees(100, 333, MS), 2.5, 3.5);
}
