/* /etc/nccl.conf of the container: what the classes of its NICs say of their network, joined with what the image says. */
#ifndef KOORDRA_HOOK_FABRIC_H
#define KOORDRA_HOOK_FABRIC_H

/* `folder` has a folder for each claim whose class says something, with a file nccl.conf that the runtime mounted. */
void fabric_join(int root, const char *folder);

#endif
