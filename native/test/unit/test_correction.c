/* What the node sees of a claim corrects what the claim charges itself, within bounds: here the node says what the test wants. */
#include "../share.h"

#define LOOK (100 * MS)

struct view {
    uint32_t rate;
    struct load load;  /* PLAIN */
    uint64_t times;    /* what is seen of what the claim really has, in thousandths */
    uint64_t lumps;    /* only what comes to whole ones; 1 */
    uint64_t anew;     /* it begins anew when it has counted so much; 0: never */
};

/* Of one claim, of the last 10 s of 30, in percent. */
static double part_seen(struct view view)
{
    if (!view.load.kernel_ns)
        view.load = PLAIN;
    if (!view.lumps)
        view.lumps = 1;
    start_shares(.tenants = 1, .blind = true);
    struct policy_device *share = &tenant(view.rate, view.load)->devices[0];
    uint64_t began = 0;
    for (unsigned at = 0; at < 300; at++) {
        pass(LOOK);
        uint64_t seen = device_time(0) * view.times / 1000;
        seen = view.anew ? seen % view.anew : seen;
        atomic_store(&share->device_time, seen - seen % view.lumps);
        atomic_store(&share->seen_until, (at + 1) * LOOK);
        if (at == 199)
            began = device_time(0);
    }
    double part = (double)(device_time(0) - began) / 1e8;
    end_shares();
    return part;
}
#define part_where_the_node_sees(...) part_seen((struct view){__VA_ARGS__})

TEST(what_the_node_sees_is_what_is_charged)
{
    CHECK_BETWEEN(part_where_the_node_sees(.rate = 3000, .times = 1000), 29, 31);
}

/* As where memory is filled between launches. */
TEST(who_has_twice_what_it_charges_gets_half)
{
    CHECK_BETWEEN(part_where_the_node_sees(.rate = 3000, .times = 2000), 13, 17);
}

TEST(nobody_is_charged_more_than_four_times)
{
    CHECK_BETWEEN(part_where_the_node_sees(.rate = 4000, .times = 20000), 9, 11);
}

/* As where kernels run beside each other. */
TEST(who_has_half_of_what_it_charges_gets_twice)
{
    CHECK_BETWEEN(part_where_the_node_sees(.rate = 2000, .times = 500), 37, 43);
}

TEST(nobody_is_charged_less_than_a_sixteenth)
{
    CHECK_BETWEEN(part_where_the_node_sees(.rate = 200, .times = 5), 28, 36);
}

/* Whole percents of a sample: a tenth of 1 % is nothing nine times, and 1 % then. */
TEST(what_is_seen_in_lumps_is_summed_up)
{
    CHECK_BETWEEN(part_where_the_node_sees(.rate = 100, .times = 100, .lumps = MS), 8, 12);
}

/* What a kernel took more than it was charged is charged afterwards, and counts as that. */
TEST(kernels_that_vary_are_no_reason_to_correct)
{
    CHECK_BETWEEN(part_where_the_node_sees(.rate = 3000, .times = 1000, .load = {.kernel_ns = 50000, .spread = 5, .kernels = 16}), 28, 32);
}

/* A plugin that is started again and again. */
TEST(a_node_that_begins_anew_misleads_nobody)
{
    CHECK_BETWEEN(part_where_the_node_sees(.rate = 3000, .times = 1000, .anew = 100 * MS), 28, 32);
}

static void launch_one_more_kind(void *function, CUstream stream)
{
    static unsigned kinds;
    unsigned blocks[] = {1, 2 + kinds++ % 130};
    for (unsigned at = 0; at < 2; at++) {
        OK(cuLaunchKernel(function, blocks[at], 1, 1, 128, 1, 1, 0, stream, NULL, NULL));
        OK(cuStreamSynchronize(stream));
    }
}

/* Every other launch is of a kind that nothing is known of: it is charged little at first, and the rest counts too. */
TEST(what_is_charged_afterwards_is_no_reason_to_correct)
{
    CHECK_BETWEEN(part_where_the_node_sees(.rate = 3000, .times = 1000, .load = {.kernel_ns = 40 * MS, .own = launch_one_more_kind}), 27, 33);
}
