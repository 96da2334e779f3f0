/* Taking a slot of the region, and giving back those of the dead. */
#ifndef KOORDRA_SLOT_H
#define KOORDRA_SLOT_H

#include <stdbool.h>

#include "region.h"

/* Makes region->slot and region->lock; false: no slot can be had. `work` is from slot_work_begin, here and below. */
bool slot_take(struct region *region, int work);

/* Nothing of it is held, nor exported, nor owned any more. */
void slot_clear(struct usage *usage, unsigned number);

/* Gives back the slots of all that are dead; how many. */
unsigned slot_reap_all(const struct region *region, int work);

/* Gives back some two of them: each attach does, so that short-lived processes do not fill the table. */
void slot_reap_some(struct region *region, int work);

#endif
