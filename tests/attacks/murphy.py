"""What breaks by itself: tests/attacks/test_murphy.py."""

from __future__ import annotations

from typing import Final

from tests.attacks.row import Attack, answer, event, log, metric, taint

_PREPARE: Final = "tests/unit/kubelet_plugin/prepare/"
_CONTROLLER: Final = "tests/unit/controller/"

MURPHY: Final = (
    Attack(
        "api-server-restarts",
        "the API server goes away for a while and comes back",
        "repaired",
        "watches go on where they ended, writes without an answer are read again",
        seen=(log("watch_interrupted"),),
        own_cluster=True,
    ),
    Attack(
        "etcd-restored",
        "etcd is restored from a backup: resourceVersions go back, and what was made since is gone",
        "repaired",
        "a watch that tells nothing is followed by a question for the server's version; a server that is older for eight "
        "lists is believed, and all is listed anew. Nodes keep what they have prepared and refuse what would be given twice",
        seen=(log("history_went_back"),),
        own_cluster=True,
    ),
    Attack(
        "class-deleted",
        "somebody deletes the DeviceClass of a claim that waits",
        "repaired",
        "claims that name it wait and are told; they are placed once it is there again",
        seen=(event("SelectorMismatch"),),
    ),
    Attack(
        "webhooks-deleted",
        "somebody deletes the webhook configurations; claims come in unchecked, pods without their gate",
        "detected",
        "the controller reads with the same strictness: a claim with a misspelt field is told so and waits, others are placed",
        seen=(event("ConstraintViolated"),),
    ),
    Attack(
        "webhook-away",
        "no replica of the webhook answers",
        "bounded",
        "claims for koordra's classes in a namespace with a quota on koordra's names are refused until one does, for nobody counts them, and "
        "are made then by whoever made them before, as are claims with koordra's parameters; all others, and all pods, are admitted, and are placed",
        seen=(answer("failed calling webhook"),),
    ),
    Attack(
        "rights-taken-away",
        "somebody deletes the controller's ClusterRoleBinding, and puts it back",
        "detected",
        "what is refused is tried again each minute; nothing is half done",
        seen=(metric('koordra_controller_write_errors_total{code="403",resource="resourceclaims"}'),),
    ),
    Attack(
        "api-server-slow",
        "each answer of the API server takes a second and more",
        "bounded",
        "everything takes longer and nothing is asked twice: a request has 5 s, a pass goes on from where it was. The leader keeps its "
        "Lease, which is renewed beside the work, as long as the answers come within that time",
        own_cluster=True,
    ),
    Attack(
        "crds-deleted",
        "somebody deletes koordra's CustomResourceDefinitions, and puts them back",
        "repaired",
        "the classes that were objects of these are gone with them, and so are their DeviceClasses (owner references); claims of other "
        "classes are placed. Once the definitions are there again, classes work without a restart: keep them in a repository",
    ),
    Attack(
        "namespace-deleted",
        "somebody deletes the namespace koordra-system, with the programs, their accounts, the Lease, the keys and all ConfigMaps in it",
        "detected",
        "what runs goes on, with its devices. Claims with parameters of koordra's, and those of namespaces with quotas, are refused, all others and all pods come in, and wait. "
        "Apply the manifests again: what waited is placed, and nothing is given twice. What was learned of the workload is learned anew",
        seen=(answer("failed calling webhook"),),
        own_cluster=True,
    ),
    Attack(
        "node-parts-lost",
        "the ConfigMap koordra-node-parts loses its entries, while pods have addresses of the nodes' parts",
        "repaired",
        "each plugin takes the parts again of which its pods have addresses, when it starts and every ten minutes; where another node was "
        "first, it gives none of them, and says which node has it",
        seen=(log("node_parts_not_kept"),),
        tests=(
            "tests/unit/kubelet_plugin/network/test_address_pools.py::test_lost_entries_are_taken_again_by_whose_claims_have_addresses_of_them",
            "tests/unit/kubelet_plugin/network/test_address_pools.py::test_a_lost_part_that_another_node_has_by_now_gives_no_address_and_is_told",
        ),
    ),
    Attack(
        "foreign-writer",
        "another scheduler, or an administrator's script, writes the allocation of a claim: the card that another claim has",
        "detected",
        "it is told of both claims; the controller takes nothing back that a pod may use, and gives the card to nobody else. The node "
        "refuses to prepare more than a card has (see `two-controllers`)",
        seen=(event("OverCommitted"),),
    ),
    Attack(
        "lease-deleted",
        "somebody deletes the Lease, or empties it",
        "repaired",
        "its holder makes it again; nobody else takes it before the holder must have stopped",
        tests=(
            f"{_CONTROLLER}test_leadership.py::test_a_lease_deleted_by_hand_is_made_again_by_its_holder",
            f"{_CONTROLLER}test_leadership.py::test_a_lease_that_is_gone_is_taken_once_its_holder_must_have_stopped",
        ),
    ),
    Attack(
        "controller-killed",
        "kill -9 of the leader at any write, or a write whose answer is lost",
        "repaired",
        "all state that matters is in the API; a successor waits until the writes of the one before must have ended",
        tests=(
            f"{_CONTROLLER}test_disturbed_writes.py::test_killed_at_any_write_the_next_controller_ends_in_the_same_state",
            f"{_CONTROLLER}test_disturbed_writes.py::test_a_lost_request_or_answer_is_made_good",
        ),
    ),
    Attack(
        "leader-stands-still",
        "the leader is stopped for longer than its Lease, and goes on",
        "denied",
        "by its own clock it stops to write one timeout before the Lease ends",
        tests=(
            f"{_CONTROLLER}test_leadership.py::test_a_writer_stops_one_timeout_before_its_lease_ends_and_a_successor_starts_one_after",
            f"{_CONTROLLER}test_leadership.py::test_who_stood_still_for_longer_than_the_lease_repairs_nothing",
            f"{_CONTROLLER}test_leadership.py::test_who_stood_still_with_its_clock_repairs_no_lease_that_its_successor_gave_away",
        ),
    ),
    Attack(
        "two-controllers",
        "two controllers write at once",
        "denied",
        "each write names the version that it was decided on; what both give from one card, the node's plugin refuses",
        tests=(
            f"{_CONTROLLER}test_disturbed_writes.py::test_two_leaders_on_one_claim_end_with_one_allocation",
            f"{_PREPARE}test_prepare.py::test_overcommit_is_refused_with_both_figures",
        ),
    ),
    Attack(
        "certificate-ends",
        "the webhook's certificate, or its authority, comes to its end; its Secret is damaged",
        "repaired",
        "renewed after two thirds of its time; a Secret that cannot be read is made anew",
        tests=(
            "tests/unit/webhook/test_keys.py::test_a_serving_certificate_is_renewed_after_two_thirds",
            "tests/unit/webhook/test_keys.py::test_a_new_authority_signs_only_when_it_is_trusted",
            "tests/unit/webhook/test_keys.py::test_a_damaged_secret_is_made_anew",
        ),
    ),
    Attack(
        "plugin-killed",
        "kill -9 of the plugin between any two steps of Prepare or Unprepare",
        "repaired",
        "the checkpoint says how far it was; the next start completes or undoes it",
        tests=(
            f"{_PREPARE}test_crashes.py::test_killed_between_any_two_steps",
            f"{_PREPARE}test_crashes.py::test_a_process_that_is_really_killed",
        ),
    ),
    Attack(
        "disk-full",
        "the node's disk is full, or the CDI directory read-only",
        "refused",
        "Prepare fails, nothing is left half done, and it works again when there is room",
        tests=(
            f"{_PREPARE}test_crashes.py::test_full_disk",
            f"{_PREPARE}test_crashes.py::test_read_only_cdi_directory",
        ),
    ),
    Attack(
        "checkpoint-damaged",
        "the plugin's checkpoint is cut, changed or lost; its state directory is wiped",
        "repaired",
        "a checksum tells; it is put together from the records for the hook, and what cannot be accounted for is given to nobody",
        tests=(
            "tests/unit/kubelet_plugin/claims/test_checkpoint.py::test_a_lost_checkpoint_is_put_together_from_the_records_for_the_hook",
            "tests/unit/kubelet_plugin/claims/test_checkpoint.py::test_what_cannot_be_accounted_for_fails_closed_until_it_is_gone",
            "tests/unit/kubelet_plugin/claims/test_checkpoint.py::test_a_wiped_state_directory_does_not_pass_for_a_clean_start",
        ),
    ),
    Attack(
        "two-plugins",
        "two plugins of one node, after an update that went wrong",
        "denied",
        "one of them holds the lock on the state; the other waits",
        tests=(
            f"{_PREPARE}test_crashes.py::test_nothing_happens_while_another_instance_holds_the_state",
            "tests/unit/kubelet_plugin/dra/test_instances.py::test_two_instances_overlap_one_ends_one_is_killed_and_a_third_takes_over",
        ),
    ),
    Attack(
        "node-cut-off",
        "a node does not reach the API server, or gets no answer from it",
        "bounded",
        "what runs goes on and can end; what is to start waits",
        tests=(
            f"{_PREPARE}test_node_life.py::test_an_api_server_that_is_away_stops_nothing_that_runs",
            "tests/unit/kubelet_plugin/dra/test_sockets.py::test_while_an_api_server_hangs_pods_of_a_full_node_keep_no_other_from_its_end",
        ),
    ),
    Attack(
        "clock-jumps",
        "the node's clock jumps by years, both ways",
        "bounded",
        "what is timed is timed by the monotonic clock",
        tests=(
            f"{_PREPARE}test_node_life.py::test_a_clock_that_jumps_changes_nothing",
            "tests/unit/nri/test_process.py::test_a_first_start_to_come_is_now",
            "tests/unit/nri/verify/test_verify.py::test_a_clock_that_was_set_back_makes_no_container_older_than_the_hook",
        ),
    ),
    Attack(
        "gpu-falls-off",
        "a card that a claim holds vanishes, moves, or is another one after a repair",
        "detected",
        "the claim has a condition and its pod an Event; the card is given to nobody, and another one under its name is refused",
        seen=(event("OtherDevice"),),
        tests=(
            "tests/unit/kubelet_plugin/test_machine_changes.py::test_the_claim_of_a_lost_card_has_a_condition_and_its_pod_an_event",
            "tests/unit/kubelet_plugin/test_machine_changes.py::test_another_card_under_the_old_name_is_refused",
        ),
    ),
    Attack(
        "node-re-imaged",
        "a node is made anew under its old name, or its disk comes to another machine",
        "repaired",
        "slices belong to the new Node; a boot id tells what was prepared before, and a claim whose card is not there is told",
        tests=(
            "tests/unit/kubelet_plugin/publish/test_publisher.py::test_a_new_node_object_becomes_the_owner",
            "tests/unit/kubelet_plugin/test_machine_changes.py::test_a_disk_that_comes_to_another_machine_loses_no_claim_in_silence",
            "tests/unit/kubelet_plugin/test_machine_changes.py::test_after_a_reboot_nothing_is_prepared_and_everything_can_be",
        ),
    ),
    Attack(
        "node-renamed",
        "a machine comes back under another node name, with its disk and its containers",
        "bounded",
        "what runs keeps its cards until the kubelet gives it back; the new pool offers them with the taint koordra.io/held meanwhile. The "
        "hook refuses holders until the plugin has written the new name. Slices of the old name go with the old Node, which somebody has to "
        "delete; so do the old name's parts of address pools, once its pods have ended",
        seen=(taint("koordra.io/held"),),
        tests=(
            "tests/unit/kubelet_plugin/test_renamed_node.py::test_what_runs_keeps_its_card_until_the_kubelet_gives_it_back",
            "tests/unit/kubelet_plugin/test_renamed_node.py::test_the_new_pool_offers_the_card_as_held_while_the_claim_is_allocated_under_the_old_name",
            "tests/unit/kubelet_plugin/test_renamed_node.py::test_slices_are_of_the_new_name_alone_and_those_of_the_old_are_the_old_nodes",
            "tests/unit/kubelet_plugin/test_renamed_node.py::test_the_hook_refuses_until_the_plugin_has_said_whose_devices_they_are",
            "tests/unit/kubelet_plugin/test_renamed_node.py::test_the_new_name_takes_parts_of_its_own_and_the_old_ones_stay",
        ),
    ),
    Attack(
        "runtime-restarts",
        "the container runtime restarts, or asks the hook later than it waits for it",
        "repaired",
        "the hook registers again and looks at all that runs; what it missed is found",
        tests=(
            "tests/e2e/test_nri_runtimes.py::test_the_runtime_restarts_with_running_containers",
            "tests/e2e/test_nri_runtimes.py::test_what_was_created_while_the_hook_was_dead_is_found_and_told",
        ),
    ),
    Attack(
        "files-replaced",
        "a link, a pipe, a socket, a device, a folder or a huge file stands in the place of a file of koordra's",
        "repaired",
        "nothing is read from there, nobody waits for it, and the next write puts it right; a lost checkpoint is put together anew",
        tests=(
            "tests/unit/node_state/test_disk.py::test_what_is_no_file_of_ours_is_not_read_and_holds_nobody_up",
            "tests/unit/kubelet_plugin/claims/test_checkpoint.py::test_something_else_in_place_of_the_checkpoint_is_a_lost_one",
            "tests/unit/nri/verify/test_verify.py::test_whatever_stands_in_the_ledger_the_hook_starts",
            f"{_PREPARE}test_node_life.py::test_stored_files_heal_while_the_plugin_runs",
        ),
    ),
    Attack(
        "something-hangs",
        "the disk, the driver's library or an isolation backend does not answer in the middle of a call or a check",
        "detected",
        "after two minutes without a step the stacks are in the log. The plugin goes on, since other cards may be well; what waits for the "
        "same lock is refused after 20 s, and the kubelet asks again",
        seen=(metric("koordra_stuck_threads"), event("ThreadStuck")),
        tests=(
            "tests/unit/kubelet_plugin/dra/test_sockets.py::test_a_call_that_hangs_is_told",
            f"{_PREPARE}test_node_life.py::test_a_check_that_hangs_is_told",
            "tests/unit/kubelet_plugin/sampling/test_sampler.py::test_a_driver_that_hangs_is_told_of_by_the_name_of_the_thread_until_it_answers",
            "tests/unit/kubelet_plugin/nvidia_driver/test_release.py::test_an_nvml_that_hangs_is_not_said_to_be_closed",
            "tests/unit/kubelet_plugin/test_third_party_isolation.py::test_one_that_hangs_is_left_alone_and_holds_nobody_else_up",
            "tests/unit/kube/test_stuck_event.py::test_a_thread_that_stands_still_is_an_event_of_the_node",
        ),
    ),
    Attack(
        "hook-killed",
        "kill -9 of the NRI hook between any two steps: of an entry, of a pod's network, of the lock and the registration",
        "detected",
        "the container whose creation it had not answered is found, and its secret is told nobody; the next hook has the lock at once, "
        "takes up the networks where they are, and registers",
        tests=(
            "tests/unit/nri/hook/test_crashes.py::test_killed_between_any_two_steps_the_container_that_nobody_adjusted_is_found",
            "tests/unit/nri/hook/test_crashes.py::test_killed_while_an_entry_is_removed_it_is_forgotten_by_the_next_listing",
            "tests/unit/kubelet_plugin/network/test_pod_network.py::test_killed_between_any_two_writes_of_its_records",
            "tests/unit/nri/test_process.py::test_killed_at_any_point_of_a_registration_another_one_is_registered",
        ),
    ),
    Attack(
        "disk-fails",
        "the node's disk gives an error at any one read or write of plugin and hook",
        "refused",
        "Prepare, or the container, fails with the file's name; nothing is given twice, nothing is lost, and the next try succeeds. A "
        "container whose entry cannot be read is no forger: it is Unverified until it can",
        tests=(
            f"{_PREPARE}test_crashes.py::test_any_one_step_fails",
            f"{_PREPARE}test_crashes.py::test_any_one_read_fails",
            "tests/unit/nri/hook/test_crashes.py::test_any_one_write_fails",
            "tests/unit/nri/hook/test_crashes.py::test_any_one_read_of_a_creation_fails_closed",
            "tests/unit/nri/verify/test_verify.py::test_an_entry_that_the_disk_does_not_give_makes_no_forger",
            "tests/unit/kubelet_plugin/network/test_pod_network.py::test_any_one_read_of_its_records_fails",
            "tests/unit/limiter/test_disk_errors.py::test_any_one_open_of_a_start_fails_and_the_next_one_completes_it",
            "tests/unit/limiter/test_disk_errors.py::test_a_region_that_cannot_be_read_hides_no_other",
            "tests/unit/kubelet_plugin/discovery/test_gpu_faults.py::test_any_one_step_of_its_file_fails",
            "tests/unit/kubelet_plugin/publish/test_allocation_mode.py::test_while_the_last_mode_cannot_be_read_the_devices_are_nobodys_first",
            "tests/unit/kubelet_plugin/nvidia_driver/test_release.py::test_from_a_report_that_the_disk_does_not_give_nvml_stays_closed_until_the_node_is_seen",
        ),
    ),
    Attack(
        "hook-hangs",
        "a handler of the NRI hook, all of them, or its verification do not return",
        "refused",
        "what is not answered in time is answered with an error in its place, so no container is created unseen. Neither probe follows the "
        "watchdog: a restart would leave the node without a hook for a moment",
        seen=(metric("koordra_stuck_threads"), event("ThreadStuck")),
        tests=(
            "tests/unit/nri/test_hung_hook.py::test_with_every_worker_in_a_handler_that_hangs_all_is_refused_and_told",
            "tests/unit/nri/test_hung_hook.py::test_a_verification_that_makes_no_step_is_told",
            "tests/unit/nri/test_hung_hook.py::test_what_was_answered_in_place_of_hung_handlers_is_kept_no_longer",
            "tests/unit/nri/test_hung_hook.py::test_requests_that_nobody_answers_are_so_many_and_then_refused",
            "tests/unit/nri/test_hung_hook.py::test_no_probe_of_the_hook_follows_its_watchdog",
            "tests/unit/kube/test_stuck_event.py::test_a_thread_that_stands_still_is_an_event_of_the_node",
        ),
    ),
)
