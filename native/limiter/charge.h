/* The one way in which every hook charges: reserve, ask the driver, then keep the charge under a key or take it back. */
#ifndef KOORDRA_CHARGE_H
#define KOORDRA_CHARGE_H

#include "driver.h"
#include "process.h"

/* May this process allocate, and on which card? CUDA_SUCCESS with `*card` NULL: nothing to count, let the driver answer. */
CUresult charge_where(struct card **card);

/* The same for a card that the caller names. */
CUresult charge_on(CUdevice device, struct card **card);

/* Takes bytes of the card; pools that have shrunk are looked at before the answer is no. */
bool charge_reserve(struct card *card, uint64_t bytes, enum kind kind);
void charge_release(struct card *card, uint64_t bytes, enum kind kind);

/* Ends what charge_reserve began: with `result` not a success the bytes go back; otherwise they are kept under the key. */
CUresult charge_settle(CUresult result, struct card *card, const struct record *record);

/* For who keeps a record without charge_settle: what it replaces has been freed unseen, with its context say. */
void charge_keep(const struct record *record);

/* For a free: takes the record of the key, if there is one, before the driver frees. */
struct record charge_take(enum space space, uint64_t key);

/* Ends the free: bytes go back if the driver freed, the record if it did not. */
CUresult charge_freed(CUresult result, const struct record *record);

/* The context is gone, and with it all that was allocated in it. */
void charge_forget_context(uint64_t context);

uint64_t current_context(void);

/* In pool.c: reads again what pools have reserved that may have shrunk. */
void pools_refresh(void);

/* In graph.c: reads again what the card's graph pool has reserved; it shrinks when it is trimmed and when its context ends. */
void graphs_refresh(struct card *card);

#endif
