/* What the cards do while time passes.
 *
 * The streams of a process are worked off in order, and beside each other as far as there are multiprocessors. Processes take
 * turns: a turn ends after a slice where somebody else has work, or at once where the process has none. What is interrupted goes
 * on where it was. An event is stamped when it is its stream's turn, and its process's. Cards that are `concurrent` know no turns. */
#include <string.h>

#include "world.h"

enum { NOBODY = 0, ALL = UINT32_MAX };

static struct world_work *head(struct world_stream *stream)
{
    return &stream->work[stream->first % WORLD_WORK];
}

static void done(struct world_stream *stream)
{
    stream->first = (stream->first + 1) % WORLD_WORK;
    stream->count--;
}

static bool of_card(const struct world_stream *stream, unsigned card)
{
    return stream->used && stream->count && stream->card == card;
}

/* Whose turn the stream's is. */
static uint32_t side(const struct world_card *card, const struct world_stream *stream)
{
    return card->concurrent ? ALL : stream->process + 1;
}

/* Work that needs no time, of whose turn it is; and host functions of anybody. */
static bool settle(struct world *world, unsigned number)
{
    struct world_card *card = &world->cards[number];
    bool any = false;
    for (unsigned at = 0; at < world->stream_top; at++) {
        struct world_stream *stream = &world->streams[at];
        while (of_card(stream, number)) {
            struct world_work *work = head(stream);
            if (work->kind == WORK_HOST && !work->ends)
                work->ends = card->at + work->left;
            bool over = work->kind == WORK_HOST ? work->ends <= card->at : side(card, stream) == card->turn && (work->kind == WORK_EVENT || work->left == 0);
            if (!over)
                break;
            if (work->kind == WORK_EVENT) {
                world->events[work->event].at = card->at;
                world->events[work->event].done = work->record;
            }
            done(stream);
            any = true;
        }
    }
    return any;
}

static bool wants(struct world *world, unsigned number, uint32_t who)
{
    for (unsigned at = 0; at < world->stream_top; at++) {
        struct world_stream *stream = &world->streams[at];
        if (of_card(stream, number) && head(stream)->kind != WORK_HOST && side(&world->cards[number], stream) == who)
            return true;
    }
    return false;
}

/* Who is next after whose turn it is; NOBODY where no one else has work. */
static uint32_t next_after(struct world *world, unsigned number)
{
    struct world_card *card = &world->cards[number];
    uint32_t after = NOBODY, first = NOBODY;
    for (unsigned at = 0; at < world->stream_top; at++) {
        struct world_stream *stream = &world->streams[at];
        if (!of_card(stream, number) || head(stream)->kind == WORK_HOST)
            continue;
        uint32_t who = side(card, stream);
        if (who == card->turn)
            continue;
        if (who > card->turn && (after == NOBODY || who < after))
            after = who;
        if (first == NOBODY || who < first)
            first = who;
    }
    return after != NOBODY ? after : first;
}

static void pass_turn(struct world_card *card, uint32_t to)
{
    card->turn = to;
    card->at += card->switch_ns;
    card->turn_ends = card->at + card->slice_ns;
}

/* Kernels that run now, and until when nothing changes. */
static uint64_t place_kernels(struct world *world, unsigned number, uint64_t until)
{
    struct world_card *card = &world->cards[number];
    uint32_t free = card->sms;
    for (unsigned at = 0; at < world->stream_top; at++) {
        struct world_stream *stream = &world->streams[at];
        stream->resident = 0;
        if (!of_card(stream, number))
            continue;
        struct world_work *work = head(stream);
        if (work->kind == WORK_HOST && work->ends < until)
            until = work->ends;
        uint32_t needed = work->sms < card->sms ? work->sms : card->sms;
        if (work->kind != WORK_KERNEL || side(card, stream) != card->turn || needed > free)
            continue;
        free -= needed;
        stream->resident = needed;
        if (card->at + work->left < until)
            until = card->at + work->left;
    }
    return until;
}

static void run_until(struct world *world, unsigned number, uint64_t until)
{
    struct world_card *card = &world->cards[number];
    uint64_t passed = until - card->at;
    uint64_t seen[WORLD_PROCESSES / 64] = {0};
    for (unsigned at = 0; at < world->stream_top; at++) {
        struct world_stream *stream = &world->streams[at];
        if (!of_card(stream, number) || !stream->resident)
            continue;
        struct world_process *process = &world->processes[stream->process];
        head(stream)->left -= passed;
        process->sm_ns[number] += passed * stream->resident;
        uint64_t bit = UINT64_C(1) << (stream->process % 64);
        if (!(seen[stream->process / 64] & bit))
            process->device_ns[number] += passed;
        seen[stream->process / 64] |= bit;
    }
    card->at = until;
}

static void take_samples(struct world *world, unsigned number)
{
    struct world_card *card = &world->cards[number];
    for (unsigned at = 0; at < world->process_top; at++) {
        struct world_process *process = &world->processes[at];
        uint64_t passed = process->device_ns[number] - process->sampled_ns[number];
        process->sampled_ns[number] = process->device_ns[number];
        if (process->used && passed)
            card->samples[card->sample_count++ % WORLD_SAMPLES] =
                (struct world_sample){card->at, process->pid, (uint32_t)((100 * passed + SAMPLE_NS / 2) / SAMPLE_NS)};
    }
    card->next_sample = card->at + SAMPLE_NS;
}

static void run_card(struct world *world, unsigned number, uint64_t now)
{
    struct world_card *card = &world->cards[number];
    if (card->concurrent)
        card->turn = ALL;
    if (!card->next_sample) {
        card->at = card->at ? card->at : now;
        card->next_sample = card->at + SAMPLE_NS;
    }
    while (card->at <= now) {
        if (settle(world, number))
            continue;
        if (card->at >= card->next_sample)
            take_samples(world, number);
        uint32_t other = next_after(world, number);
        bool mine = wants(world, number, card->turn);
        if (other != NOBODY && (!mine || card->at >= card->turn_ends)) {
            pass_turn(card, other);
            continue;
        }
        if (card->at >= now)
            break;
        uint64_t until = other != NOBODY && card->turn_ends < now ? card->turn_ends : now;
        run_until(world, number, place_kernels(world, number, until < card->next_sample ? until : card->next_sample));
    }
}

void scheduler_run(struct world *world)
{
    uint64_t now = world_now(world);
    for (unsigned card = 0; card < world->card_count && world->stream_top; card++)
        run_card(world, card, now);
}

static uint64_t work_left(const struct world_work *work, uint64_t now)
{
    return work->kind == WORK_HOST && work->ends ? (work->ends > now ? work->ends - now : 0) : work->left;
}

uint64_t stream_busy_until(const struct world *world, const struct world_stream *stream)
{
    uint64_t now = world->cards[stream->card].at, until = now;
    for (uint32_t at = 0; at < stream->count; at++)
        until += work_left(&stream->work[(stream->first + at) % WORLD_WORK], now);
    return stream->count ? (until > now ? until : now + 1000) : 0;
}

uint64_t stream_room_at(const struct world *world, const struct world_stream *stream)
{
    uint64_t now = world->cards[stream->card].at, left = work_left(&stream->work[stream->first % WORLD_WORK], now);
    return now + (left ? left : 1000);
}
