/* Device time: a launch goes on when what the claim has launched before is paid for. See pace.c for the story. */
#ifndef KOORDRA_PACE_H
#define KOORDRA_PACE_H

#include "process.h"

/* One launch, from before to after the driver's call. */
struct launch {
    struct card *card; /* NULL: nothing is charged */
    struct where where;
    uint64_t charged;
    int span;
};

/* The card that a launch would be on now, if its time is limited; NULL: the launch goes on as it is. */
struct card *pace_card(void);

/* Waits until the launch may go on, and charges what it takes. */
void pace_launch(struct launch *launch, struct card *card, uint64_t key, struct where where);

/* The driver has been called: gives back what was charged if it launched nothing. */
void pace_launched(struct launch *launch, CUresult result);

/* The context is about to end, and with it what was to be measured in it. */
void pace_forget_context(CUcontext context);

#endif
