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
pub mod exec;
mod fixture;
pub mod images;
mod lab;
pub mod recovery;
pub mod sandboxes;
pub mod specs;
pub mod tasks;

pub use fixture::{Fixture, MISSING_EXECUTABLE};

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
        backend.signal_task(task.id, Signal::KILL).await.expect("kill what is left of a fact");
        if task.state.is_running() {
            backend.wait_task(task.id).await.expect("wait for what is left of a fact");
        }
        backend.remove_task(task.id).await.expect("remove a task of a fact");
    }
    for sandbox in &found.sandboxes {
        backend.stop_sandbox(sandbox.id).await.expect("stop a sandbox of a fact");
        backend.remove_sandbox(sandbox.id).await.expect("remove a sandbox of a fact");
    }
    let left = fixture.remaining_objects().await;
    assert!(left.is_empty(), "left after everything was removed: {left:#?}");
    let backend = fixture.reopen().await;
    let left = backend.recover().await.expect("recover after clearing");
    assert!(left.sandboxes.is_empty() && left.tasks.is_empty(), "recovered after removal: {left:#?}");
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
    assert!(tokio::time::timeout(PATIENCE, all).await.is_ok(), "{name} did not end within {PATIENCE:?}");
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
            sandboxes::a_sandbox_can_be_stopped_and_removed_any_number_of_times;
            sandboxes::stop_and_removal_of_an_unknown_sandbox_are_done;
            sandboxes::an_unknown_sandbox_has_no_stats_and_no_facts;
            sandboxes::a_sandbox_with_an_unknown_handler_is_refused_and_leaves_nothing;
            sandboxes::two_sandboxes_share_neither_address_nor_namespace;
            sandboxes::sandboxes_can_be_made_at_the_same_time;
            sandboxes::a_ready_sandbox_has_stats_and_facts;
            sandboxes::a_stopped_sandbox_is_made_ready_again_with_the_addresses_it_had;
            sandboxes::the_gateways_own_network_gives_addresses_that_are_recovered;
            tasks::an_unknown_task_cannot_be_started_waited_for_or_entered;
            tasks::removal_of_an_unknown_task_is_done;
            tasks::a_task_with_a_missing_image_is_not_found_and_leaves_nothing;
            tasks::the_exit_code_is_told_to_every_waiter_and_again_after_the_end;
            tasks::an_abandoned_wait_loses_nothing;
            tasks::a_started_task_has_a_pid_and_a_time;
            tasks::a_signal_reaches_the_main_process;
            tasks::sigkill_ends_a_task_with_137;
            tasks::a_signal_to_a_task_that_does_not_run_is_done;
            tasks::a_missing_executable_fails_the_start_and_is_recorded;
            tasks::a_task_can_be_removed_any_number_of_times;
            tasks::a_created_task_can_be_removed;
            tasks::tasks_of_one_sandbox_can_run_at_the_same_time;
            tasks::only_a_running_task_has_usage;
            tasks::a_task_without_a_log_has_none_to_reopen;
            tasks::a_task_can_be_inspected_until_it_is_removed;
            tasks::a_volume_is_not_removed_while_a_task_has_it;
            tasks::output_that_is_somebody_elses_cannot_be_attached_to;
            tasks::an_init_process_needs_a_process_namespace_of_the_tasks_own;
            recovery::nothing_is_recovered_from_nothing;
            recovery::a_ready_sandbox_is_recovered_as_it_was;
            recovery::a_stopped_sandbox_is_recovered_as_stopped;
            recovery::a_removal_that_was_begun_is_recovered_as_one;
            recovery::a_created_task_is_recovered_as_it_was_and_can_be_started;
            recovery::a_running_task_is_recovered_and_can_be_waited_for;
            recovery::an_exited_task_is_recovered_with_its_exit;
            recovery::an_end_that_nobody_waited_for_is_recovered;
            recovery::recovering_twice_changes_nothing;
            recovery::new_limits_are_recovered;
            recovery::a_note_on_a_sandbox_is_recovered;
            recovery::what_sandboxes_and_tasks_hold_of_the_node_is_recovered;
            recovery::limits_that_cannot_be_set_leave_the_old_ones;
            exec::a_process_writes_to_both_streams_and_ends_with_its_code;
            exec::what_goes_in_comes_out_and_dropping_the_input_ends_it;
            exec::the_end_can_be_asked_for_again;
            exec::a_signal_ends_a_process;
            exec::a_dropped_process_is_killed;
            exec::two_processes_run_at_the_same_time;
            exec::a_process_ends_with_its_task;
            exec::a_task_that_does_not_run_cannot_be_entered;
            exec::a_command_that_does_not_exist_is_refused;
            exec::a_terminal_merges_the_streams_and_can_be_resized;
            exec::output_that_a_child_holds_can_be_cut;
            exec::the_end_of_what_is_typed_ends_a_process_with_a_terminal;
            exec::the_end_of_what_is_typed_is_there_for_all_who_read;
            attach::what_one_client_says_is_heard_by_all_and_an_open_input_outlives_them;
            attach::an_input_that_is_once_ends_with_its_client;
            attach::output_ends_with_the_task;
            attach::an_open_input_outlives_the_daemon;
            attach::a_task_without_input_gives_none;
            attach::a_terminal_gives_one_output_and_can_be_resized;
            attach::output_that_goes_nowhere_cannot_be_attached_to;
            attach::a_task_that_does_not_run_cannot_be_attached_to;
            attach::a_port_that_nobody_listens_on_is_unavailable;
            images::pulling_twice_gives_the_same_id;
            images::pulls_at_the_same_time_give_the_same_id;
            images::an_image_is_found_by_each_of_its_names;
            images::removal_by_one_name_removes_all_names;
            images::a_removal_takes_only_what_its_owner_holds;
            images::what_its_last_holder_had_by_credentials_is_nobodys_afterwards;
            images::removal_of_a_missing_image_is_done;
            images::a_text_that_names_nothing_is_no_error;
            images::a_malformed_reference_cannot_be_pulled;
            images::an_image_that_the_registry_lacks_is_not_found;
            images::an_abandoned_pull_can_be_taken_up_again;
            images::images_survive_the_daemon;
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
