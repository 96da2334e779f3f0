"""Commands that ask the API server of a cluster.

claims           which claims have which devices
devices          which devices there are, and who has them; cordon_device: nothing new on some of them
use/             top, usage: what of it is used, by claim and pod, and GPU-hours by namespace
explain          why something waits, or why it is where it is: of a cluster (cluster_answers), of files
                 (file_answers), in words (claim_text, object_text)
cluster_objects  how they reach the server, what they read of it, and how they follow it (--watch)
"""
