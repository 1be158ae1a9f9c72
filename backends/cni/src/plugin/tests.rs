//! Deadlines of a plugin, and the signals to its process group.

use std::sync::mpsc;

use super::*;
use crate::testing::{Bench, attachment, list};
use switchyard_linux::process::Stat;
use switchyard_linux::report;

/// A shell that runs `script` as a plugin, with our ends of its pipes.
fn start(script: &str) -> (GroupLeader, Pipes) {
    let (stdout, to_stdout) = output_pipe().unwrap();
    let (stderr, to_stderr) = output_pipe().unwrap();
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(to_stdout)
        .stderr(to_stderr);
    let mut process = GroupLeader::start(&mut command).unwrap();
    let stdin = process.take_stdin().unwrap();
    let pipes = Pipes {
        stdin,
        stdout,
        stderr,
    };
    (process, pipes)
}

#[tokio::test]
async fn plugin_that_exits_in_time_is_not_late_although_a_child_keeps_its_pipes() {
    let (mut process, pipes) = start("sleep 3 & echo result");
    let pid = process.pid().unwrap();
    while !Stat::of(pid).unwrap().ended {
        sleep(Duration::from_millis(5)).await;
    }
    // The deadline is over before the output is no longer waited for.
    let deadline = Instant::now() + PIPE_GRACE / 2;
    let output = communicate(&mut process, pipes, b"{}", deadline)
        .await
        .unwrap();
    assert!(Instant::now() > deadline);
    assert!(output.status.success());
    assert_eq!(output.stdout, b"result\n");
}

#[tokio::test]
async fn process_group_is_signalled_until_the_plugin_is_reaped() {
    let (mut process, _pipes) = start("exec sleep 300");
    assert!(process.pid().is_some());
    process.kill_and_reap().await;
    assert_eq!(process.pid(), None);

    // A child that writes too much once the plugin is reaped.
    let script =
        "(while [ -e /proc/$$ ]; do sleep 0.01; done; exec head -c 1060000 /dev/zero) & exit 0";
    let (mut process, pipes) = start(script);
    let deadline = Instant::now() + Duration::from_secs(60);
    let error = communicate(&mut process, pipes, b"{}", deadline).await;
    assert!(matches!(error, Err(OutputError::TooLarge)), "{error:?}");
    assert_eq!(process.pid(), None);
}

/// The runtime's only thread for blocking calls hangs, as in a call on a dead network file system.
#[test]
fn directories_that_hang_are_given_up_in_time_and_block_no_worker() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    let list = list("1.0.0", &["one"]);
    let (answers, answer) = mpsc::channel::<()>();
    runtime.block_on(async {
        let limit = Duration::from_millis(200);
        let hung = tokio::task::spawn_blocking(move || answer.recv());
        let network = bench.network_within(&list, limit);
        let added = network.add(&attachment()).await.map(drop);
        let deleted = network.del(&attachment(), None).await;
        for refused in [added, deleted] {
            let error = refused.unwrap_err();
            let text = report(&error);
            assert!(matches!(error, Error::PluginDirs { .. }), "{text}");
            assert!(error.is_unusable_directory(), "{text}");
            assert!(text.ends_with("0.2 s: does a file system hang?"), "{text}");
        }
        assert!(bench.order().is_empty());
        drop(answers);
        hung.await.unwrap().unwrap_err();
        let network = bench.network(&list);
        network.add(&attachment()).await.unwrap();
    });
}

#[tokio::test]
async fn directories_that_hang_take_a_bounded_number_of_threads() {
    let bench = Bench::new();
    let plugins = bench.plugins_within(Duration::from_millis(200));
    let mut answers = Vec::new();
    for _ in 0..PLUGIN_THREADS {
        let (answering, answer) = mpsc::channel::<()>();
        answers.push(answering);
        let soon = Instant::now() + Duration::from_millis(20);
        let hung = plugins.access_dirs("net", soon, move || answer.recv());
        assert!(matches!(hung.await, Err(Error::PluginDirs { .. })));
    }
    let (begin, began) = mpsc::channel();
    let soon = Instant::now() + Duration::from_millis(20);
    let more = plugins.access_dirs("net", soon, move || begin.send(()));
    assert!(matches!(more.await, Err(Error::PluginDirs { .. })));
    drop(answers);
    let later = Instant::now() + Duration::from_secs(60);
    plugins.access_dirs("net", later, || ()).await.unwrap();
    assert!(began.try_recv().is_err(), "it was given up before it began");
}
