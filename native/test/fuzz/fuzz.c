/* Call sequences against the books: one process does random things, and after each of them the ledger and the referee must name
 * the same number of bytes, both cards'. Arguments: sequences, steps of each, first seed. A failure names the seed and the step;
 * the same arguments give the same sequence again. Every third sequence has a limit so low that most things are refused, and
 * every fourth has faults injected into the driver. */
#include "../harness.h"
#include "../property/actions.h"

static void one_sequence(uint64_t seed, unsigned steps)
{
    static const char *const functions[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemCreate", "cuMemMap", "cuArray3DCreate_v2", "cuMemAllocAsync", "cuMemPoolDestroy", "cuGraphLaunch"};
    struct actor actor = {.random = seed * 2654435761u + 1, .own_contexts = true};
    policy->devices[0].limit = policy->devices[1].limit = seed % 3 == 0 ? 64 * MIB : 2 * GIB;
    world->cards[0].watched = world->cards[1].watched = policy->devices[0].limit;
    for (unsigned step = 0; step < steps; step++) {
        if (seed % 4 == 0 && step % 16 == 0) {
            world->faults[0] = (struct fault){.result = CUDA_ERROR_OUT_OF_MEMORY, .countdown = (int)(step % 5)};
            snprintf(world->faults[0].function, sizeof world->faults[0].function, "%s", functions[(seed + step) % 8]);
        }
        if (step % 7 == 0) {
            actor.card = (int)((seed + step) % 2);
            use_card(actor.card);
        }
        act(&actor);
        world->faults[0].countdown += world->faults[0].countdown < 0 ? 1000 : 0;
        cuCtxSynchronize();
        for (unsigned card = 0; card < 2; card++)
            if (ledger(card) != truth(card)) {
                fprintf(stderr, "seed %llu step %u: card %u is charged %llu and holds %llu\n", (unsigned long long)seed, step, card, (unsigned long long)ledger(card),
                        (unsigned long long)truth(card));
                _exit(1);
            }
        CHECK_EQUAL(world->violations, 0);
    }
    world->faults[0] = (struct fault){.result = 0};
    CHECK_EQUAL(actor.unexpected, 0);
    give_everything_back(&actor);
    cuCtxSynchronize();
    for (int card = 0; card < 2; card++) {
        cuDeviceGraphMemTrim(card);
        CHECK_EQUAL(ledger((unsigned)card), truth((unsigned)card));
    }
}

int main(int count, char **arguments)
{
    unsigned sequences = count > 1 ? (unsigned)strtoul(arguments[1], NULL, 10) : 200, steps = count > 2 ? (unsigned)strtoul(arguments[2], NULL, 10) : 200;
    uint64_t first = count > 3 ? strtoull(arguments[3], NULL, 10) : 1;
    snprintf(folder, sizeof folder, "%s", getenv("KOORDRA_TEST_FOLDER"));
    begin(.limit = 2 * GIB, .card_bytes = 64 * GIB);
    for (uint64_t seed = first; seed < first + sequences; seed++)
        one_sequence(seed, steps);
    fprintf(stderr, "fuzzer: %u sequences of %u steps\n", sequences, steps);
    return 0;
}
