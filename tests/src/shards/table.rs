//! The slow items, and the shard of each.
//!
//! A new row belongs in the shortest shard; a test fails when one exceeds the mean by a fifth. The seconds
//! are those of one run on two processors, without KVM: `tests/run` prints the slowest tests, and how long
//! each fact of the guest took.

use super::What::{Documentation, Fact, PowerCut, Root, Selinux, Smoke, Test, Version};
use super::{KnownFailure, RootPart, Slow, Suite, What};
use crate::versions::OtherVersion;

/// Facts that only the guest can show, and that every run checks.
pub const EVERY_RUN: &[What] = &[
    Fact("units", "package_is_whole_and_its_units_start_at_each_boot"),
    Fact("limits", "limits_are_in_cgroup_v2_files_and_can_be_updated"),
    Fact("limits", "oom_kill_of_the_main_process_is_reported"),
];

/// The modules of `tests/it` that are tested with the containerd and the runtimes of other suites of Debian, in two parts: a tenth of the
/// tests each, of what depends on them most.
pub const ROOT_PARTS: [&[&str]; 2] = [
    &[
        "contract",
        "cri::pods",
        "cri::exits",
        "cri::limits",
        "cri::recovery",
        "cri::user_namespaces",
        "cri::pid_namespaces",
        "breaks::runtimes",
    ],
    &[
        "images",
        "caller_resources",
        "nomad::task_lifecycle",
        "nomad::resources",
        "nomad::networks",
        "cri::network",
        "cri::streaming::exec",
        "breaks::shims",
    ],
];

/// Tests that fail in these suites. A failure that is not listed fails the run; the summary names a row whose
/// test passes.
pub const KNOWN_FAILURES: &[KnownFailure] = &[
    KnownFailure {
        suite: Suite::Sid,
        test: "cri::exits::busy_cgroup_is_removed_when_empty",
        output: "failed to delete task: unable to destroy container: unable to remove container's cgroup: Failed to remove paths: \
                 map[:/sys/fs/cgroup/unified/…]: runc 1.3 refuses to delete a container while its control group has a process \
                 that somebody else has put there",
    },
    KnownFailure {
        suite: Suite::Sid,
        test: "hostile::memory::daemon_and_logkeeper_are_not_dumpable_but_their_children_are",
        output: "unable to start container process: error spawning mount remapping thread: mount source thread: open container \
                 mntns: open /proc/…/ns/mnt: permission denied: the test runs containerd without CAP_SYS_PTRACE, with which \
                 runc 1.3 opens the mount namespace of each container that it starts",
    },
];

/// Tests that play kills at a list of points, one after the other, and the source file that has the list: each shard takes every eighth
/// point.
pub const KILL_LISTS: &[(&str, &str)] = &[
    (
        "kills::run_pod_interrupted_by_kill_is_completed_by_retry",
        "tests/it/kills/pods.rs",
    ),
    (
        "kills::pod_stop_and_removal_interrupted_by_kill_are_completed_by_retry",
        "tests/it/kills/pods.rs",
    ),
    (
        "kills::container_create_start_update_interrupted_by_kill_are_completed_by_retry",
        "tests/it/kills/tasks.rs",
    ),
    (
        "kills::container_exit_interrupted_by_kill_is_reported_and_removal_completed_by_retry",
        "tests/it/kills/task_ends.rs",
    ),
    (
        "kills::exit_is_reported_after_kill_while_a_hung_shim_was_killed",
        "tests/it/kills/task_ends.rs",
    ),
    (
        "kills::calls_interrupted_by_kill_complete_when_containerd_retains_exits",
        "tests/it/kills/task_ends.rs",
    ),
    (
        "kills::image_pull_unpack_removal_interrupted_by_kill_are_completed_by_retry",
        "tests/it/kills/images.rs",
    ),
    (
        "kills::device_lease_interrupted_by_kill_is_regained_and_released_one_is_not",
        "tests/it/kills/device_leases.rs",
    ),
    (
        "kills::daemon_starts_on_full_and_read_only_disks_after_kills_during_pods_images_and_leases",
        "tests/it/kills/cases.rs",
    ),
    (
        "kills::daemon_starts_on_full_and_read_only_disks_after_kills_during_containers",
        "tests/it/kills/cases.rs",
    ),
    (
        "kills::interrupted_call_without_retry_is_listed_or_rolled_back",
        "tests/it/kills/abandoned.rs",
    ),
    (
        "kills::kill_with_external_containerd_loses_and_leaves_nothing",
        "tests/it/kills/external_containerd.rs",
    ),
    (
        "kills::logkeeper_killed_at_any_step_loses_duplicates_or_tears_no_line",
        "tests/it/kills/logkeepers.rs",
    ),
    (
        "kills::kill_during_daemon_start_loses_nothing",
        "tests/it/kills/daemon_starts.rs",
    ),
    (
        "kills::kill_during_first_daemon_start_is_recovered",
        "tests/it/kills.rs",
    ),
    (
        "nomad::kills::task_start_interrupted_by_kill_is_completed_by_retry_once",
        "tests/it/nomad/kills.rs",
    ),
    (
        "nomad::kills::network_creation_interrupted_by_kill_is_rolled_back_and_repeated",
        "tests/it/nomad/kills.rs",
    ),
    (
        "nomad::kills::network_creation_without_plugins_interrupted_by_kill_is_rolled_back_and_repeated",
        "tests/it/nomad/kills.rs",
    ),
    (
        "nomad::kills::network_removal_without_plugins_interrupted_by_kill_is_completed_by_retry",
        "tests/it/nomad/kills.rs",
    ),
    (
        "nomad::kills::image_load_interrupted_by_kill_is_completed_by_retry_once",
        "tests/it/nomad/kills.rs",
    ),
    (
        "nomad::kills::task_exit_interrupted_by_kill_is_reported_with_its_code",
        "tests/it/nomad/kills.rs",
    ),
    (
        "nomad::kills::task_removal_interrupted_by_kill_is_completed_by_retry",
        "tests/it/nomad/kills.rs",
    ),
    (
        "nomad::kills::task_removal_interrupted_by_kill_is_completed_without_retry",
        "tests/it/nomad/kills.rs",
    ),
];

/// Makes a row of the table of each line: its seconds, and what it is. The formatter leaves the lines whole.
macro_rules! slow {
    ($(shard $shard:literal { $($seconds:literal $what:expr;)* })*) => {
        &[$($(Slow { what: $what, shard: $shard, seconds: $seconds },)*)*]
    };
}

/// Everything else that is slow.
pub const SLOW: &[Slow] = slow! {
    shard 0 {
        15 Test("nomad::pins::task_sends_with_other_addresses_only_with_net_admin");
        15 Test("caller_resources::pins::sandbox_is_pinned_until_a_task_of_it_has_net_admin");
        12 Test("nomad::network_defaults::reload_finds_no_change_in_defaults_and_waits_with_a_key");
        40 Fact("nfs", "nomad_task_uses_exports_of_an_nfs_server_and_leaves_no_mount");
        14 Test("breaks::read_only_disks::ext4_that_an_error_made_read_only_is_reported_and_what_runs_can_be_ended");
        18 Test("breaks::network::configuration_directory_that_hangs_stops_only_pods_on_its_network");
        75 Fact("installation", "package_with_a_refused_configuration_leaves_the_old_daemon");
        11 Test("breaks::execs::commands_in_a_container_whose_shim_hangs_leave_a_bounded_number");
        15 Test("nomad::bad_input::malformed_task_fields_are_rejected_by_name_and_leave_nothing_behind");
        16 Test("hostile::images::silent_blobs_leave_nothing_behind");
        20 Test("hostile::watchdog::neither_a_thousand_clients_nor_a_hung_containerd_trip_the_watchdog");
        28 Test("nomad::go_host::go_plugin_client_runs_a_task_from_handshake_to_exit");
        17 Test("hostile::operators::storm_of_scrapes_leaves_pods_and_memory_alone");
        13 Test("ledger::ports::last_bridge_port_goes_to_a_pod_or_a_task_never_both");
        11 Test("cri::events_and_metrics::thousand_stalled_event_clients_cost_little_and_block_nobody");
        11 Test("cri::recovery::kill_during_ten_runs_leaves_one_pod_each");
        9 Test("breaks::runtimes::slow_start_is_awaited_with_external_containerd");
        8 Test("images::access::unreachable_registry_is_unavailable");
        8 Test("kills::start_outcome_is_known_across_short_lived_daemons");
        25 Test("upgrades::invalid_configuration::whatever_ends_under_an_invalid_configuration_comes_back_and_no_line_is_lost");
        18 Fact("quota", "disk_quota_counts_joined_mounts_together_and_others_apart");
        14 Fact("limits", "oom_kill_of_a_child_process_is_reported");
        10 Fact("apparmor", "containers_are_confined_by_the_default_profile");
        5 Fact("limits", "stats_match_the_cgroup");
        21 Smoke("cri::v1alpha2::v1alpha2_only_limits_are_applied_or_rejected");
        21 Smoke("cri::exits::exit_has_code_and_reason");
        180 PowerCut;
        10 Fact("limits", "hierarchy_of_version_1_beside_version_2_changes_nothing");
        4 Fact("units", "system_extension_is_merged_and_wants_its_units");
        1 Fact("counters", "children_of_processes_are_listed");
        75 Fact("packages", "units_survive_ten_kills_in_a_row");
    }
    shard 1 {
        10 Test("caller_resources::native_bridge::bridge_that_is_made_has_a_range_of_ipv6_whatever_comes");
        25 Test("nomad::network_defaults::node_of_a_former_version_stays_as_it_is_until_its_keys_are_set");
        20 Test("nomad::network_defaults::new_node_needs_no_plugins_and_its_bridges_do_not_reach_each_other");
        25 Test("cri::pod_bridge::kill_amid_a_change_of_the_network_of_pods_leaves_neither_bridge_nor_mark");
        18 Test("cri::plugin_commands::network_is_not_ready_while_a_plugin_refuses_status_and_pods_start_all_the_same");
        13 Test("cri::stops::stop_is_answered_before_plugins_are_done_and_who_needs_what_they_free_waits");
        15 Test("upgrades::recipes::upgrade_node_counts_what_was_taken_over_and_fails_if_anything_was_not");
        42 Test("swarm::sessions::recovery_of_20_s_moves_no_task_where_the_heartbeats_of_managers_are_longer");
        25 Test("upgrades::unreadable::what_a_later_version_wrote_is_held_and_as_before_when_that_version_is_back");
        17 Test("breaks::network::cni_del_of_a_stopped_daemon_is_finished_and_awaited");
        27 Test("breaks::failing_databases::ends_are_listed_and_pods_stop_although_nothing_can_be_recorded");
        18 Test("hostile::images::endless_or_invalid_blobs_leave_nothing_behind");
        20 Test("breaks::read_only_disks::disk_that_refuses_writes_is_reported_whatever_it_says_of_itself");
        18 Test("breaks::checkpoints::hung_criu_is_killed_and_container_keeps_running");
        23 Test("swarm::health::service_is_healthy_over_kills_amid_its_checks_until_a_check_fails");
        13 Test("cri::crashes::kill_during_creates_and_starts_leaves_each_container_once");
        11 Test("breaks::versions::containerd_that_is_late_for_its_check_is_busy_while_it_answers_others");
        11 Test("prometheus::dashboard::each_panel_shows_a_real_node_and_each_owner_that_has_tasks");
        10 Test("secrets::secrets_of_clients_are_in_no_output_page_or_log");
        8 Test("daemon::readiness_follows_containerd");
        8 Test("ledger::ports::last_group_network_port_goes_to_a_pod_or_a_task_never_both");
        30 Fact("quota", "container_cannot_exceed_its_disk_quota");
        16 Fact("checkpoint", "checkpoint_keeps_tcp_connections");
        12 Fact("daemon", "containers_survive_restart_of_the_unit");
        9 Fact("units", "pod_lifecycle_completes");
        4 Fact("units", "reload_waits_for_the_verdict");
        3 Fact("counters", "hugepage_and_memory_reservation_metrics_match_the_kernel");
        1 Fact("limits", "no_systemd_units_are_left_after_removal");
        21 Smoke("nomad::resources::task_runs_in_the_agents_cgroups_with_job_limits");
        21 Smoke("nomad::resources::task_over_its_memory_limit_is_reported_oom_killed");
        21 Smoke("cri::recovery::pods_and_containers_survive_daemon_kill");
        21 Smoke("caller_resources::cgroups::oom_kill_in_leaf_cgroup_is_reported");
        280 Selinux;
    }
    shard 2 {
        35 Test("swarm::bridges::neither_bridge_nor_address_is_left_when_the_daemon_that_makes_it_is_killed");
        15 Fact("quota", "disk_quota_keeps_its_project_while_any_container_uses_it");
        17 Test("breaks::execs::exit_code_comes_although_the_shim_hangs_and_does_not_close_the_output");
        35 Test("drill::slow_way_of_scrapes_is_made_and_alerted");
        100 Fact("installation", "program_and_units_are_replaced_and_put_back_without_the_package");
        26 Test("breaks::snapshotters::snapshotter_that_hangs_does_not_delay_recovery_for_ever");
        27 Test("breaks::failing_databases::daemon_serves_although_it_can_remove_nothing_that_its_predecessor_left");
        35 Test("swarm::logs::logs_of_running_rotated_and_ended_tasks_are_what_was_printed");
        25 Test("swarm::resources::pod_that_takes_everything_ends_no_task");
        17 Test("hostile::names::arbitrary_task_names_are_used_or_rejected_by_field");
        16 Test("swarm::networks::manager_places_services_on_a_network_with_a_configuration_of_the_node");
        13 Test("breaks::execs::commands_whose_children_keep_their_output_leave_no_descriptor");
        12 Test("breaks::shims::shim_with_changing_containers_is_not_killed_during_its_check");
        11 Test("cri::logs::kills::last_lines_are_logged_after_exit_without_a_logkeeper");
        16 Test("nomad::recoveries::recovery_that_kills_cut_off_three_times_is_answered_by_the_plugin_that_was_asked");
        11 Test("nomad::resources::common_task_options_are_visible_in_the_task");
        9 Test("reload::images::registry_directories_are_reloaded");
        8 Test("breaks::network::failing_cni_del_is_named_and_stop_can_be_retried");
        7 Test("objects::members_of_the_socket_group_read_and_root_alone_changes");
        63 Fact("quota", "daemon_kill_during_disk_quota_leaves_no_limit_or_project");
        16 Fact("clock", "clock_jumps_by_years_during_pull_stop_and_exec_have_no_effect");
        10 Fact("user_namespaces", "user_namespace_pod_owns_its_volumes_and_is_confined");
        8 Fact("pressure", "pressure_is_reported_for_containers_pods_and_metrics");
        5 Fact("pressure", "memory_high_throttles_and_kills_nobody");
        1 Fact("user_namespaces", "handlers_report_and_support_their_features");
        60 Fact("contained", "pods_run_on_a_node_that_is_a_container_in_a_user_namespace");
        21 Smoke("caller_resources::cgroups::task_runs_in_its_leaf_cgroup_and_leaves_it_unchanged");
        31 Smoke("nomad::crashes::task_survives_daemon_kills_and_waiters_get_its_exit");
        80 Root(Suite::Sid, RootPart::First);
    }
    shard 3 {
        100 Test("prometheus::files::shipped_rules_pass_their_tests");
        12 Fact("daemon", "logkeeper_kill_loses_no_line");
        29 Test("swarm::bridges::neither_bridge_nor_address_is_left_when_the_daemon_is_killed_amid_a_set_up_or_a_removal");
        30 Test("breaks::lost_files::daemon_replaces_the_processes_of_its_predecessor_whose_pid_files_are_deleted");
        35 Test("breaks::shim_answers::wrong_shim_answer_fails_at_most_one_exec_and_leaves_nothing_behind");
        70 Test("drill::runtime_that_begins_no_command_is_made_and_alerted");
        15 Test("drill::containerd_that_hangs_is_made_and_alerted");
        14 Test("drill::device_that_a_job_holds_is_made_and_alerted");
        32 Fact("installation", "package_is_installed_where_no_daemon_is_to_start");
        36 Test("breaks::logkeeper::hung_logkeeper_blocks_starts_and_running_containers_continue");
        31 Test("swarm::neighbours::last_device_goes_to_one_orchestrator_and_the_others_wait_or_are_told_which");
        26 Test("fuzzing::cdi");
        23 Test("cri::logs::rotation::log_rotation_under_load_and_kills_loses_no_line");
        17 Test("swarm::neighbours::last_port_goes_to_one_orchestrator_and_the_others_are_told_which");
        12 Test("breaks::failing_databases::process_of_a_failed_start_is_ended_although_the_failure_cannot_be_recorded");
        13 Test("breaks::shims::hung_shim_blocks_no_other_container_and_is_killed_when_unused");
        11 Test("hostile::images::registry_errors_are_truncated_and_hide_redirect_targets");
        11 Test("images::lifecycle::image_fs_usage_grows_with_images");
        10 Test("swarm::joins::manager_that_is_none_or_absent_is_told");
        8 Test("cri::streaming::attach::logkeeper_kill_does_not_affect_attached_clients");
        8 Test("swarm::rotation::promotion_is_ignored_and_told_with_its_cure");
        17 Fact("daemon", "containers_survive_unit_stop_and_are_adopted");
        14 Fact("units", "doctor_judges_the_units");
        10 Fact("daemon", "logkeeper_restart_loses_no_line");
        3 Fact("apparmor", "unloaded_profile_is_rejected_by_name");
        21 Smoke("cri::user_namespaces::user_namespace_root_is_unprivileged_on_the_host");
        21 Smoke("cri::devices::cdi_devices_are_injected_from_field_and_annotations");
        21 Smoke("cri::network::host_port_reaches_the_pod_until_it_is_stopped");
        80 Root(Suite::Trixie, RootPart::First);
        40 Documentation;
        92 Fact("checkpoint", "container_continues_after_daemon_kill_during_checkpoint");
    }
    shard 4 {
        70 Fact("firewalld", "firewalld_leaves_published_ports_and_tables_alone_and_is_opened_as_documented");
        45 Test("swarm::docker::task_reaches_and_is_reached_where_docker_has_closed_what_is_forwarded");
        20 Test("cri::pod_bridge::pod_has_one_address_and_one_port_whatever_the_daemon_is_killed_after");
        15 Test("cri::plugin_commands::gc_is_told_the_pods_of_the_daemon_at_a_start_if_the_configuration_asks_for_it");
        13 Test("cri::stops::network_of_an_answered_stop_is_released_by_the_next_daemon");
        36 Test("swarm::scale::many_tasks_outlive_kills_of_the_daemon_and_a_long_absence_is_told");
        18 Test("ledger::devices::last_device_goes_to_a_pod_or_a_task_never_both");
        24 Test("swarm::sessions::two_nodes_with_one_identity_are_told_of_each_other");
        50 Test("drill::slow_registry_is_made_and_alerted");
        30 Test("drill::network_without_a_free_address_is_made_and_alerted");
        30 Test("drill::old_password_is_made_and_alerted");
        14 Test("nomad::task_lifecycle::fifty_tasks_start_concurrently");
        36 Test("swarm::resources::devices_are_scheduled_and_those_of_pods_are_not_offered");
        16 Test("breaks::registries::unresponsive_registry_fails_the_pull_and_leaves_nothing_behind");
        27 Test("swarm::rotation::rotation_of_the_ca_renews_the_certificate_and_ends");
        21 Test("hostile::trees::deep_directory_tree_is_removed_with_its_container");
        17 Test("hostile::trees::deep_directory_tree_is_removed_after_daemon_kill");
        15 Test("prometheus::listener::changed_files_are_in_force_soon_and_unusable_ones_are_not");
        13 Test("breaks::runtimes::start_waits_for_deletion_that_outlasts_the_exit_event");
        11 Test("hostile::names::arbitrary_container_names_are_used_or_rejected_by_field");
        10 Test("hostile::images::arbitrary_image_names_are_rejected_or_not_found");
        10 Test("swarm::updates::service_is_updated_in_both_orders_and_moves_with_the_availability_of_the_node");
        8 Test("cri::logs::full_disk::log_follower_on_a_full_disk_sees_whole_lines_and_log_resumes");
        7 Test("ledger::ports::last_host_network_port_goes_to_a_pod_or_a_task_never_both");
        140 Fact("packages", "package_upgrade_and_downgrade_change_no_process");
        22 Fact("nomad", "nomad_tasks_run_in_the_agents_cgroup_and_survive_daemon_kill");
        15 Fact("checkpoint", "failed_checkpoint_is_explained_and_leaves_nothing_behind");
        13 Fact("checkpoint", "checkpoint_has_process_state_and_processes_continue");
        1 Fact("units", "systemd_cgroup_driver_is_selected");
        21 Smoke("nomad::networks::task_without_network_mode_uses_the_bridge_with_published_ports");
        21 Smoke("cri::pods::pod_lifecycle_completes_and_leaves_nothing_behind");
        21 Smoke("caller_resources::cgroups::cpu_limits_are_set_on_the_leaf_cgroup");
        80 Root(Suite::Trixie, RootPart::Second);
    }
    shard 5 {
        15 Test("cri::pod_bridge::with_plugins_another_range_waits_until_the_bridge_of_the_former_one_is_deleted");
        12 Test("upgrades::unreadable::what_cannot_be_read_and_is_removed_by_hand_leaves_nothing");
        35 Fact("packages", "logkeeper_starts_and_containers_go_on_under_an_invalid_configuration");
        30 Test("breaks::execs::probes_of_a_hundred_containers_hold_after_a_stall");
        28 Test("swarm::logs::rotation_that_is_killed_at_any_step_is_continued_and_loses_no_line");
        21 Test("swarm::logs::logs_go_through_a_manager_that_is_not_the_leader");
        17 Test("cri::chaos::random_kills_lose_no_acknowledged_state_and_leave_nothing_behind");
        15 Test("cri::logs::kills::daemon_kill_loses_no_line_and_blocks_no_container");
        13 Test("swarm::daemon::token_file_joins_by_itself_once_and_not_after_a_removal");
        11 Test("swarm::daemon::wrong_tokens_roles_and_users_are_refused_and_leave_nothing");
        11 Test("ledger::devices::failed_task_start_frees_its_device_and_a_restart_regains_it");
        9 Test("reload::signals::a_thousand_hangups_with_good_and_bad_files_fail_no_request");
        8 Test("metrics::containers::containers_of_pods_and_jobs_have_the_names_of_their_owners");
        8 Test("status_page::page_shows_all_owners_to_who_has_a_link_and_is_readable_in_every_view");
        220 Fact("interrupted", "interrupted_upgrade_changes_no_process_and_is_completed_by_dpkg");
        110 Fact("removal", "package_removal_and_purge_leave_what_they_should");
        18 Fact("checkpoint", "container_continues_after_disconnect_during_checkpoint");
        15 Fact("apparmor", "localhost_apparmor_profile_is_applied");
        11 Fact("nomad", "nomad_task_oom_kill_is_reported_and_its_cgroup_is_emptied");
        8 Fact("pressure", "swap_is_limited_and_reported");
        21 Smoke("cri::exits::memory_limit_violation_is_reported_as_oom_killed");
    }
    shard 6 {
        8 Fact("emulation", "image_for_another_architecture_runs_while_the_kernel_has_its_emulator");
        45 Test("swarm::docker::task_reaches_and_is_reached_where_docker_is_started_after_it");
        8 Test("debian_packages::build::binary_whose_libraries_are_not_known_is_refused_with_the_reason");
        11 Test("nomad::task_lifecycle::many_waiters_get_the_exit_and_block_no_other_call");
        82 Test("prometheus::alerts::alerts_fire_and_clear_as_parts_of_a_node_fail_and_recover");
        29 Test("swarm::failover::session_moves_to_another_manager_when_the_leader_is_killed");
        16 Test("logs::top_shows_who_uses_most_of_two_readings");
        13 Test("swarm::neighbours::tasks_of_all_orchestrators_outlive_a_kill_of_the_daemon_beside_each_other");
        12 Test("cri::logs::kills::daemon_and_logkeeper_kills_lose_no_line");
        25 Test("breaks::logkeeper::many_starts_at_once_outlive_a_silence_of_the_logkeeper");
        11 Test("breaks::registries::registry_retry_after_is_honoured");
        10 Test("hostile::names::arbitrary_pod_names_are_used_or_rejected_by_field");
        9 Test("undo::failed_task_start_is_recorded_and_leaves_no_process");
        7 Test("hostile::trees::deep_image_volume_is_copied_completely");
        30 Fact("clock", "clock_jumps_have_no_effect");
        15 Fact("daemon", "containers_survive_daemon_kill_and_restart_by_systemd");
        9 Fact("limits", "crun_limits_survive_systemd_daemon_reload");
        6 Fact("counters", "device_metrics_match_the_kernel");
        5 Fact("apparmor", "container_does_not_start_without_its_default_profile");
        2 Fact("units", "units_start_and_notify_readiness");
        21 Smoke("cri::volumes::recursive_read_only_mount_is_applied");
        21 Smoke("cri::limits::limits_are_applied_and_can_be_updated");
        80 Root(Suite::Sid, RootPart::Second);
        210 Version(OtherVersion::Newer);
    }
    shard 7 {
        20 Test("cri::pod_bridge::bridge_without_pods_is_deleted_when_new_ones_have_the_network_of_cni_again");
        19 Test("hostile::memory::memory_that_a_burst_of_requests_took_goes_back_within_a_minute");
        13 Test("cri::limits::usage_stats_are_reported_and_increase");
        12 Test("logs::followed::every_line_is_followed_once_over_rotations_and_kills_of_the_logkeeper");
        11 Test("swarm::sessions::new_description_reaches_managers_within_the_same_session");
        10 Test("nomad::images::unused_image_is_removed_after_its_delay_across_daemon_kill");
        9 Test("breaks::shims::hung_shim_is_not_killed_while_it_serves_another_container");
        8 Test("breaks::disks::state_disk_without_space_still_reports_exits_and_allows_removals");
        4 Fact("apparmor", "unloaded_default_profile_is_loaded_again");
        1 Fact("units", "socket_is_accessible_to_root_only");
        480 Version(OtherVersion::Former);
        30 Test("breaks::snapshotters::default_snapshotter_that_containerd_cannot_use_makes_the_node_not_ready_with_its_reason");
    }
};
