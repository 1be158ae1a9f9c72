//! The facts that every [`Backend`](switchyard_core::backend::Backend) must satisfy. Each fact is a function,
//! and runs for every backend.
//!
//! A backend's tests define a [`Fixture`] and invoke [`contract_tests!`]; each fact becomes one test with its
//! own fixture. After each fact all objects are removed, and nothing may remain.
//!
//! Commands that are used: `sh`, `sleep`, `cat`, `echo`, `true`, as in busybox; [`MISSING_EXECUTABLE`] must
//! not exist.

use std::time::Duration;

use switchyard_core::spec::Signal;

pub mod attach;
mod contract_test;
pub mod exec;
mod fixture;
pub mod images;
pub mod recovery;
mod refusal;
pub mod sandboxes;
pub mod specs;
pub mod tasks;

pub use fixture::{Fixture, MISSING_EXECUTABLE};
pub use refusal::refused;

/// Timeout of one fact: long enough for a busy machine, short enough to name a fact that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Removes all objects, and checks that nothing remains.
///
/// # Panics
/// If an object cannot be removed, or something remains.
pub async fn clear(fixture: &dyn Fixture) {
    let backend = fixture.reopen().await;
    let found = backend.recover().await.expect("recover before clearing");
    for task in &found.tasks {
        backend
            .signal_task(task.id, Signal::KILL)
            .await
            .expect("kill what is left of a fact");
        if task.state.is_running() {
            backend
                .wait_task(task.id)
                .await
                .expect("wait for what is left of a fact");
        }
        backend
            .remove_task(task.id)
            .await
            .expect("remove a task of a fact");
    }
    for sandbox in &found.sandboxes {
        backend
            .stop_sandbox(sandbox.id)
            .await
            .expect("stop a sandbox of a fact");
        backend
            .remove_sandbox(sandbox.id)
            .await
            .expect("remove a sandbox of a fact");
    }
    let left = fixture.remaining_objects().await;
    assert!(
        left.is_empty(),
        "left after everything was removed: {left:#?}"
    );
    let backend = fixture.reopen().await;
    let left = backend.recover().await.expect("recover after clearing");
    assert!(
        left.sandboxes.is_empty() && left.tasks.is_empty(),
        "recovered after removal: {left:#?}"
    );
}

/// Runs one fact with a timeout, then [`clear`]; used by [`contract_tests!`].
///
/// # Panics
/// If the fact does not hold, or does not end in time.
pub async fn run(name: &str, fixture: &dyn Fixture, fact: impl Future<Output = ()> + Send) {
    let all = async {
        fact.await;
        clear(fixture).await;
    };
    assert!(
        tokio::time::timeout(PATIENCE, all).await.is_ok(),
        "{name} did not end within {PATIENCE:?}"
    );
}

/// Defines one test for each fact. The fixture is an expression of a type that implements [`Fixture`]; it may
/// await.
///
/// ```text
/// contract_tests!(|| MyFixture::start().await);
/// ```
#[macro_export]
macro_rules! contract_tests {
    (|| $fixture:expr) => {
        $crate::contract_tests! { @each $fixture;
            sandboxes::sandbox_stop_and_removal_are_idempotent;
            sandboxes::stop_and_removal_of_an_unknown_sandbox_succeed;
            sandboxes::unknown_sandbox_has_no_stats_or_inspection;
            sandboxes::unknown_handler_is_rejected_and_leaves_nothing_behind;
            sandboxes::sandboxes_have_distinct_addresses_and_namespaces;
            sandboxes::sandboxes_can_be_created_concurrently;
            sandboxes::ready_sandbox_has_stats_and_inspection;
            sandboxes::restarted_sandbox_keeps_its_addresses;
            sandboxes::bridge_addresses_are_recovered;
            tasks::unknown_task_cannot_be_started_awaited_or_entered;
            tasks::removal_of_an_unknown_task_succeeds;
            tasks::task_with_missing_image_is_not_found_and_leaves_nothing_behind;
            tasks::every_waiter_gets_the_exit_code_also_after_exit;
            tasks::cancelled_wait_loses_no_exit;
            tasks::started_task_has_pid_and_start_time;
            tasks::signal_reaches_the_main_process;
            tasks::sigkill_exits_a_task_with_137;
            tasks::signal_to_a_task_that_does_not_run_succeeds;
            tasks::start_withdrawn_before_it_begins_changes_nothing;
            tasks::missing_executable_fails_the_start_and_is_recorded;
            tasks::task_removal_is_idempotent;
            tasks::created_task_can_be_removed;
            tasks::tasks_of_one_sandbox_run_concurrently;
            tasks::only_a_running_task_has_usage;
            tasks::log_reopen_fails_without_a_log;
            tasks::task_can_be_inspected_until_removal;
            tasks::volume_in_use_is_not_removed;
            tasks::caller_owned_output_cannot_be_attached;
            tasks::init_process_needs_a_private_pid_namespace;
            recovery::recovery_of_an_empty_backend_finds_nothing;
            recovery::ready_sandbox_is_recovered_unchanged;
            recovery::stopped_sandbox_is_recovered_as_stopped;
            recovery::begun_removal_is_recovered;
            recovery::created_task_is_recovered_and_can_be_started;
            recovery::running_task_is_recovered_and_can_be_waited_for;
            recovery::exited_task_is_recovered_with_its_exit;
            recovery::unawaited_exit_is_recovered;
            recovery::recovering_twice_changes_nothing;
            recovery::updated_limits_are_recovered;
            recovery::sandbox_note_is_recovered;
            recovery::claims_of_sandboxes_and_tasks_are_recovered;
            recovery::failed_limits_update_keeps_the_old_limits;
            exec::exec_process_has_both_streams_and_exit_code;
            exec::exec_echoes_stdin_and_dropping_it_closes_it;
            exec::exit_can_be_awaited_repeatedly;
            exec::signal_terminates_an_exec_process;
            exec::dropped_exec_process_is_killed;
            exec::two_exec_processes_run_concurrently;
            exec::exec_process_ends_with_its_task;
            exec::exec_needs_a_running_task;
            exec::exec_of_a_missing_command_is_rejected;
            exec::exec_tty_merges_streams_and_can_be_resized;
            exec::output_held_by_a_child_can_be_cut_off;
            exec::tty_stdin_eof_terminates_the_exec_process;
            exec::tty_stdin_eof_reaches_all_readers;
            attach::attached_clients_share_streams_and_open_stdin_survives_them;
            attach::attach_stdin_once_closes_with_its_client;
            attach::attached_output_ends_with_the_task;
            attach::open_stdin_survives_the_daemon;
            attach::attach_without_stdin_has_no_input;
            attach::attached_tty_has_one_output_and_can_be_resized;
            attach::discarded_output_cannot_be_attached;
            attach::attach_needs_a_running_task;
            attach::closed_port_is_unavailable;
            images::repeated_pull_returns_the_same_id;
            images::concurrent_pulls_return_the_same_id;
            images::image_is_found_by_each_of_its_names;
            images::image_removal_removes_all_names;
            images::image_removal_affects_only_its_owner;
            images::private_image_is_inaccessible_after_its_last_holder;
            images::removal_of_a_missing_image_succeeds;
            images::lookup_of_an_unknown_image_is_none;
            images::pull_of_a_malformed_reference_fails;
            images::image_missing_in_the_registry_is_not_found;
            images::cancelled_pull_can_be_resumed;
            images::images_survive_daemon_restart;
            images::images_use_disk;
        }
    };
    (@each $fixture:expr; $($group:ident::$fact:ident;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $fact() {
                let fixture = $fixture;
                $crate::run(stringify!($fact), &fixture, $crate::$group::$fact(&fixture)).await;
            }
        )*
    };
}
