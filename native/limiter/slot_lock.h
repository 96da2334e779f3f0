/* Who lives, and who is at work on a slot: locks of the kernel. See slot_lock.c for the story. */
#ifndef KOORDRA_SLOT_LOCK_H
#define KOORDRA_SLOT_LOCK_H

#include <stdbool.h>

#include "region.h"

/* A file of the region's folder; -1 where it cannot be had. */
int region_file(const char *folder, const char *name, int flags);

/* For work on slots: fork waits from the one to the other. The file is -1 where it cannot be had. */
int slot_work_begin(const struct region *region);
void slot_work_end(int work);

/* The sole right to work on the slot, until slot_release or slot_work_end; false: somebody else has it. Never waits. */
bool slot_seize(int work, unsigned slot);
void slot_release(int work, unsigned slot);

/* The file that has the slot's owner's lock; -1 where it cannot be had. Slots n and n + ALIVE_FILES share one. */
int slot_owners(const struct region *region, unsigned slot);
void slot_owners_end(int owners);

/* Whether the slot has a living owner; one that cannot be asked about has. */
bool slot_owned(int owners, unsigned slot);

/* The mapping that says for as long as it is there that the slot, seized through `work`, has a living owner; NULL where it
 * cannot be had. */
const void *slot_own(int work, int owners, unsigned slot);

/* From now until this process's memory goes, the node can see that it was refused. */
void refused_for_life(const char *folder);

#endif
