/* What programs of the driver are told of the node's cards. */
#ifndef KOORDRA_HOOK_CARDS_H
#define KOORDRA_HOOK_CARDS_H

/* In a container with nodes of cards: that they make no others, and that EGL and Vulkan list these alone. */
void tell_cards(int root);

#endif
