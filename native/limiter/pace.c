/* A claim's part of a card's time, for all its processes together.
 *
 * The claim's budget is one word of `usage`: the time until which what was launched is paid for, at the claim's rate. A launch of
 * cost c may go on when that time has come, and moves it on by c / rate. So the rate holds from the first launch on, whatever the
 * size of the card; there is no gain to be tuned and nothing to swing. The word moves by compare-and-swap, so a process that is
 * killed leaves nothing half done. With it goes the rate that it was moved by: a debt is paid at the rate of now.
 *
 * Idle time is saved up to CREDIT of device time, and no launch waits longer than PATIENCE, however deep the debt: bounds both
 * ways, so that neither an idle hour nor one endless kernel is paid for by others or for ever.
 *
 * To keep the clock and the shared word off the way of most launches, a process takes device time in advance (ADVANCE of wall
 * time, at most QUANTUM) and spends it by one subtraction.
 *
 * What a launch costs is measured (span.c, cost.c). A launch that nothing is known of is charged little and measured, what it
 * really took is charged afterwards, and the next one of the same kind waits for that; for HOLD at most, since a kernel may well
 * wait for the program, or for another process's kernel: nothing here ever waits for the card alone. The same holds where what was
 * launched is not done long after: then the card is behind, and more launches would only make a queue that no change of a limit
 * could reach.
 *
 * Measured costs may be wrong in the long run: kernels that run beside each other, others' turns in between, graphs that wait for
 * host functions. The node sees from outside how much time the claim really had (`device_time`); what that is to what was charged
 * corrects every later charge, within bounds. Without the node's view the measurements stand as they are.
 *
 * Who waits sleeps until the computed time, in pieces of NAP, so that a change of the policy is seen. */
#include "pace.h"

#include <errno.h>
#include <time.h>

#include "defect.h"
#include "driver.h"
#include "ledger.h"

#define MS UINT64_C(1000000)
#define CREDIT (10 * MS)     /* of device time */
#define PATIENCE (10000 * MS)
#define ADVANCE (2 * MS)
#define QUANTUM (1 * MS)     /* of device time */
#define NAP (50 * MS)
#define HOLD (100 * MS)
#define GRACE (1000 * MS)
#define GUESS (MS / 20)      /* for what is not known */
#define MEASURE_EVERY (1 * MS)
#define ENOUGH (20 * MS)     /* charged, to be compared with what was seen in whole percent */

enum { WHOLE = 10000, RATE_BITS = 14, UNIT_BITS = 8, STAMP_BITS = 16, ONE = 1024, CORRECTION_LEAST = ONE / 16, CORRECTION_MOST = ONE * 4 };

static uint64_t clock_now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * UINT64_C(1000000000) + (uint64_t)at.tv_nsec;
}

static void sleep_until(uint64_t until)
{
    struct timespec at = {(time_t)(until / UINT64_C(1000000000)), (long)(until % UINT64_C(1000000000))};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

static const struct policy_device *policy_of(const struct share *share)
{
    return &share->region->policy->devices[share->index];
}

static struct pace *pace_of(const struct share *share)
{
    return &share->region->usage->paces[share->index];
}

#ifdef KOORDRA_DEFECTS
/* When others do not limit. */
static bool switched_off(const struct share *share)
{
    const struct policy_device *policy = policy_of(share);
    return (DEFECT(alone_unlimited) && !atomic_load(&policy->neighbours)) || (DEFECT(off_without_samples) && policy->seen_until && !policy->device_time) ||
           (DEFECT(needs_host_pid) && !atomic_load(&share->region->usage->slots[share->region->slot].host_pid));
}

/* A gain that grows with the square of the card's multiprocessors. */
static uint64_t others_charge(uint64_t ns)
{
    int sms = 1;
    if (DEFECT(gain_grows_with_the_card))
        DRIVER(cuDeviceGetAttribute, int *, int, CUdevice)(&sms, 16, 0);
    return ns / (uint64_t)sms / (uint64_t)sms;
}
#else
#define switched_off(share) false
#define others_charge(ns) (ns)
#endif

/* In 1/100 %; 0: not limited. `now` 0: without what is lent for a time, which is no less. */
static uint32_t rate_of(const struct share *share, uint64_t now)
{
    const struct policy_device *policy = policy_of(share);
    uint32_t rate = atomic_load_explicit(&policy->rate, memory_order_relaxed);
    if (now && rate && now < atomic_load_explicit(&policy->lent_until, memory_order_relaxed)) {
        uint32_t lent = atomic_load_explicit(&policy->lent, memory_order_relaxed);
        rate = lent > rate ? lent : rate;
    }
    return rate < WHOLE && !switched_off(share) ? rate : 0;
}

/* The word: units of 256 ns, enough for nine years without a boot, and the rate. */
static uint64_t word_of(uint64_t time, uint32_t rate)
{
    return time >> UNIT_BITS << RATE_BITS | rate;
}

/* When all is paid for at this rate, within the bounds. */
static uint64_t paid_until(uint64_t word, uint32_t rate, uint64_t now)
{
    uint64_t until = word >> RATE_BITS << UNIT_BITS, before = word & ((1u << RATE_BITS) - 1);
    uint64_t credit = CREDIT * WHOLE / rate;
    if (DEFECT(credit_winds_up))
        credit = now;
    if (word == 0)
        return now;
    if (until > now + PATIENCE)
        until = now + PATIENCE;
    if (until > now && before && before != rate && !DEFECT(debt_at_old_rate))
        until = now + (until - now) * before / rate;
    return until + credit < now ? now - credit : until;
}

static uint64_t at_rate(const struct pace *pace, uint64_t ns, uint32_t rate)
{
    uint64_t correction = atomic_load_explicit(&pace->correction, memory_order_relaxed);
    correction = correction < CORRECTION_LEAST || correction > CORRECTION_MOST ? ONE : correction;
    return others_charge(ns) * correction / ONE * WHOLE / rate;
}

/* Takes device time; when it is the claim's. Whoever comes first is first, so no process of a claim starves another. */
static uint64_t take(const struct share *share, uint64_t ns, uint32_t rate, uint64_t now)
{
    struct pace *pace = pace_of(share);
    uint64_t word = atomic_load(&pace->paid_until), until;
    do
        until = paid_until(word, rate, now);
    while (!atomic_compare_exchange_weak(&pace->paid_until, &word, word_of(until + at_rate(pace, ns, rate), rate)));
    atomic_fetch_add_explicit(&pace->charged, ns, memory_order_relaxed);
    return until;
}

/* Afterwards: what it took is more or less than was charged. */
static void settle(const struct share *share, int64_t more, uint64_t now)
{
    uint32_t rate = rate_of(share, now);
    if (!more || !rate)
        return;
    struct pace *pace = pace_of(share);
    uint64_t word = atomic_load(&pace->paid_until), size = at_rate(pace, (uint64_t)(more < 0 ? -more : more), rate), until;
    do {
        until = paid_until(word, rate, now);
        until = more > 0 ? until + size : until > size ? until - size : 0;
    } while (!atomic_compare_exchange_weak(&pace->paid_until, &word, word_of(until, rate)));
    atomic_fetch_add_explicit(&pace->charged, (uint64_t)more, memory_order_relaxed);
}

/* What the node has seen since it looked before, against what was charged: parts of the time, since the one is not of the same
 * instants as the other. Only of a time in which the rate was what held the claim: what it took of an idle hour says nothing. */
static void correct(const struct share *share, uint32_t rate, uint64_t now)
{
    struct pace *pace = pace_of(share);
    const struct policy_device *policy = policy_of(share);
    uint64_t until = atomic_load(&policy->seen_until), before = atomic_load(&pace->seen_until);
    uint64_t charged = atomic_load(&pace->charged), paid = charged - atomic_load(&pace->charged_then);
    if (until == before || !rate || (before != 0 && paid < ENOUGH)) /* so little says little: with the next ones */
        return;
    if (!atomic_compare_exchange_strong(&pace->seen_until, &before, until))
        return;
    uint32_t stamp = (uint32_t)(now >> STAMP_BITS);
    uint64_t device_time = atomic_load(&policy->device_time), seen = device_time - atomic_load(&pace->device_time_then);
    uint64_t passed = (uint64_t)(stamp - atomic_load(&pace->then)) << STAMP_BITS, watched = until - before;
    atomic_store(&pace->device_time_then, device_time);
    atomic_store(&pace->charged_then, charged);
    atomic_store(&pace->then, stamp);
    if (before == 0 || seen == 0 || seen > PATIENCE || paid > PATIENCE || !passed || passed > PATIENCE || !watched || watched > PATIENCE)
        return; /* nothing was seen: a driver that does not tell, or a node that has begun anew */
    if (at_rate(pace, paid, rate) < passed / 2)
        return;
    uint64_t known = atomic_load(&pace->correction), ratio = seen * ONE / watched * passed / paid;
    known = known < CORRECTION_LEAST || known > CORRECTION_MOST ? ONE : known;
    ratio = ratio < CORRECTION_LEAST ? CORRECTION_LEAST : ratio > CORRECTION_MOST ? CORRECTION_MOST : ratio;
    atomic_store(&pace->correction, (uint32_t)((known + ratio) / 2));
}

/* In advance, so that the next launches need not ask. */
static uint64_t advance(uint64_t cost, uint32_t rate)
{
    uint64_t quantum = ADVANCE * rate / WHOLE;
    quantum = quantum < QUANTUM ? quantum : QUANTUM;
    return cost > quantum ? cost : quantum;
}

static bool spend(struct card *card, uint64_t cost)
{
    if (atomic_fetch_sub_explicit(&card->prepaid, (int64_t)cost, memory_order_relaxed) >= (int64_t)cost)
        return true;
    atomic_fetch_add_explicit(&card->prepaid, (int64_t)cost, memory_order_relaxed);
    return false;
}

static bool shared_card(const struct card *card)
{
    return atomic_load_explicit(&policy_of(&card->allowance.shares[0])->neighbours, memory_order_relaxed) != 0;
}

static void harvest(struct card *card, uint64_t now)
{
    settle(&card->allowance.shares[0], spans_harvest(card, shared_card(card)), now);
}

/* Waits for measurements, a bounded time, and after that not again for a while. */
static void hold(struct card *card, uint64_t key)
{
    struct costs *costs = &process_self()->costs;
    uint64_t now = clock_now(), until = now + HOLD, step = MS / 50;
    if (now < __atomic_load_n(&card->grace_until, __ATOMIC_RELAXED) || DEFECT(runs_ahead))
        return;
    while (spans_hold(card, key, cost_known(costs, key) != 0, now)) {
        if (now >= until && !DEFECT(waits_for_the_card)) {
            spans_give_up(card);
            __atomic_store_n(&card->grace_until, now + GRACE, __ATOMIC_RELAXED);
            return;
        }
        sleep_until(now + step < until || DEFECT(waits_for_the_card) ? now + step : until);
        step = step < MS ? 2 * step : MS;
        now = clock_now();
        harvest(card, now);
    }
}

/* Not the launch that has waited, before which the card may have been idle for us: the next one. */
static void measure_again(struct card *card, uint64_t now)
{
    if (now - __atomic_load_n(&card->measured_at, __ATOMIC_RELAXED) < MEASURE_EVERY)
        return;
    __atomic_store_n(&card->measured_at, now, __ATOMIC_RELAXED);
    atomic_store_explicit(&card->measure_next, true, memory_order_relaxed);
}

/* Which of the card's claims can pay first, if there are several. */
static const struct share *payer(const struct card *card, uint64_t now)
{
    const struct share *best = &card->allowance.shares[0];
    uint64_t earliest = UINT64_MAX;
    for (unsigned index = 0; index < card->allowance.share_count; index++) {
        const struct share *share = &card->allowance.shares[index];
        uint32_t rate = rate_of(share, now);
        uint64_t until = rate ? paid_until(atomic_load(&pace_of(share)->paid_until), rate, now) : 0;
        ledger_acknowledge(share);
        correct(share, rate, now);
        if (until < earliest) {
            earliest = until;
            best = share;
        }
    }
    return best;
}

/* Until it is the claim's turn; at the rate of then, if that has changed. */
static void wait_until(const struct share *share, uint64_t until, uint32_t rate, uint64_t now)
{
    uint64_t began = now;
    while (rate && now < until) {
        atomic_store_explicit(&pace_of(share)->active, now, memory_order_relaxed);
        if (DEFECT(naps_of_ten_ms))
            sleep_until(now + 10 * MS);
        else
            sleep_until(until - now < NAP ? until : now + NAP);
        now = clock_now();
        uint32_t changed = rate_of(share, now);
        ledger_acknowledge(share);
        if (changed && changed != rate && now < until && !DEFECT(debt_at_old_rate))
            until = now + (until - now) * rate / changed;
        if (until > began + PATIENCE)
            until = began + PATIENCE;
        rate = changed;
    }
    atomic_fetch_add_explicit(&pace_of(share)->waited, now - began, memory_order_relaxed);
}

static void buy(struct card *card, uint64_t cost)
{
    uint64_t now = clock_now();
    const struct share *share = payer(card, now);
    uint32_t rate = rate_of(share, now);
    atomic_store_explicit(&pace_of(share)->active, now, memory_order_relaxed);
    if (!rate)
        return;
    uint64_t taken = advance(cost, rate);
    wait_until(share, take(share, taken, rate, now), rate, now);
    atomic_fetch_add_explicit(&card->prepaid, (int64_t)(taken - cost), memory_order_relaxed);
}

/* The long way: what is not known, or not paid for. */
static void admit(struct launch *launch, struct card *card, uint64_t key)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool relaxed = DRIVER(cuThreadExchangeStreamCaptureMode, int *)(&mode) == CUDA_SUCCESS;
    if (!stream_captures(launch->where)) {
        uint64_t now = clock_now();
        harvest(card, now);
        hold(card, key);
        uint64_t known = DEFECT(cost_by_grid) ? GUESS : cost_known(&process_self()->costs, key);
        launch->card = card;
        launch->charged = known ? known : GUESS;
        bool chosen = !known || atomic_exchange_explicit(&card->measure_next, false, memory_order_relaxed);
        if (!spend(card, launch->charged))
            buy(card, launch->charged);
        now = clock_now();
        if (chosen)
            launch->span = span_begin(card, launch->where, key, launch->charged, !known, now);
        measure_again(card, now);
    }
    if (relaxed)
        DRIVER(cuThreadExchangeStreamCaptureMode, int *)(&mode);
}

struct card *pace_card(void)
{
    struct process *process = process_self();
    if (!process || atomic_load_explicit(&process->state, memory_order_acquire) != PROCESS_READY)
        return NULL;
    bool paced = false;
    for (unsigned number = 0; number < process->card_count && !paced; number++) {
        const struct allowance *allowance = &process->cards[number].allowance;
        paced = allowance->share_count && rate_of(&allowance->shares[0], 0);
    }
    if (!paced)
        return NULL;
    struct card *card = process->card_count == 1 ? &process->cards[0] : current_card();
    return card && card->allowance.share_count && rate_of(&card->allowance.shares[0], 0) ? card : NULL;
}

void pace_launch(struct launch *launch, struct card *card, uint64_t key, struct where where)
{
    uint32_t cost = DEFECT(cost_by_grid) ? GUESS : cost_known(&process_self()->costs, key);
    *launch = (struct launch){.where = where, .span = -1};
    if (__builtin_expect(atomic_load_explicit(&process_self()->captures, memory_order_relaxed) != 0, 0) && stream_captures(where) && !DEFECT(captured_is_charged))
        return;
    if (__builtin_expect(cost && !atomic_load_explicit(&card->measure_next, memory_order_relaxed) && spend(card, cost), 1)) {
        launch->card = card;
        launch->charged = cost;
        return;
    }
    admit(launch, card, key);
}

void pace_launched(struct launch *launch, CUresult result)
{
    if (__builtin_expect(launch->span < 0 && result == CUDA_SUCCESS, 1) || !launch->card)
        return;
    if (launch->span >= 0)
        span_end(launch->card, launch->span, launch->where, result == CUDA_SUCCESS);
    if (result != CUDA_SUCCESS)
        atomic_fetch_add_explicit(&launch->card->prepaid, (int64_t)launch->charged, memory_order_relaxed);
}

void pace_forget_context(CUcontext context)
{
    struct process *process = process_self();
    for (unsigned number = 0; process && number < process->card_count; number++)
        spans_forget(&process->cards[number], context);
}
