//! Options that only tasks of some frontends use and pods do not: an init process, other namespaces, a
//! network namespace that the caller sets up.

use std::fs;
use std::time::Duration;

use switchyard_core::ErrorKind;
use switchyard_core::spec::{CgroupNamespace, SandboxNetwork, Signal, UserRef, UtsMode};
use switchyard_tests::host::eventually;

use super::{CallerFixture, bridged};

#[tokio::test(flavor = "multi_thread")]
async fn init_process_reaps_children_and_forwards_signals_and_exit_codes() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let script =
        "trap 'exit 7' TERM; (sh -c 'sleep 0.1 & echo' &); while true; do sleep 0.05; done";
    let task = caller.task(sandbox, script, |spec| spec.init = true).await;
    assert_eq!(
        caller
            .shell_output(task, "tr '\\0' ' ' </proc/1/cmdline | cut -c-12")
            .await,
        "/dev/init sh"
    );
    let dead = || async {
        caller
            .shell_output(
                task,
                "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null; true",
            )
            .await
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(dead().await, "", "nobody has reaped them");
    caller
        .backend
        .signal_task(task, Signal::TERM)
        .await
        .expect("it can be signalled");
    assert_eq!(caller.end(task).await.code, 7);
    for (command, code) in [
        ("/no/such/executable", 127),
        ("/etc/hostname", 126),
        ("true", 0),
    ] {
        let task = caller
            .task(sandbox, "", |spec| {
                spec.init = true;
                spec.command = vec![command.to_owned()];
                // Nobody may run what only root could.
                spec.user.user = Some(UserRef::Uid(1000));
            })
            .await;
        assert_eq!(caller.end(task).await.code, code, "{command}");
    }
    let shared = caller.try_task(sandbox, "true", |spec| {
        spec.init = true;
        spec.pid = switchyard_core::spec::PidMode::Host;
    });
    assert_eq!(
        shared.await.expect_err("it would not be the first").kind(),
        ErrorKind::InvalidArgument
    );
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn joined_network_namespace_reports_its_addresses() {
    let caller = CallerFixture::new().await;
    // As an agent makes one: here another sandbox's.
    let (_, theirs) = caller.sandbox(|spec| spec.network = bridged(|_| {})).await;
    let netns = theirs.netns.clone().expect("it has one");
    let (joined, details) = caller
        .sandbox(|spec| {
            spec.network = SandboxNetwork::Joined(netns);
            spec.hostname = "web".to_owned();
            spec.sysctls = [("net.core.somaxconn", "777"), ("kernel.msgmax", "7777")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
        })
        .await;
    assert_eq!(details.ips, theirs.ips);
    let task = caller.task(joined, "exec sleep 1000", |_| {}).await;
    let hosts = caller.shell_output(task, "cat /etc/hosts").await;
    assert!(
        hosts.contains(&format!("{}\tweb", theirs.ips[0])),
        "{hosts}"
    );
    let parameters = caller
        .shell_output(
            task,
            "cat /proc/sys/net/core/somaxconn /proc/sys/kernel/msgmax",
        )
        .await;
    assert_eq!(parameters, "777\n7777");
    let host = fs::read_to_string("/proc/sys/net/core/somaxconn").expect("the kernel has it");
    assert_ne!(host.trim(), "777", "the host's stays");
    let ours = caller.try_sandbox(|spec| {
        spec.network = SandboxNetwork::Joined("/proc/self/ns/net".into());
        spec.sysctls = [("net.core.somaxconn".to_owned(), "777".to_owned())].into();
    });
    let refused = ours.await.expect_err("it is the host's");
    assert!(
        refused.report().contains("net.core.somaxconn"),
        "{}",
        refused.report()
    );
    let refused = caller
        .try_sandbox(|spec| spec.network = SandboxNetwork::Joined("/no/such/netns".into()))
        .await;
    let refused = refused.expect_err("it is not there");
    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
    assert!(
        refused.report().contains("/no/such/netns"),
        "{}",
        refused.report()
    );
    // Who joins goes first, as with an agent's.
    caller
        .backend
        .signal_task(task, Signal::KILL)
        .await
        .expect("it can be killed");
    caller.end(task).await;
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostname_is_independent_of_the_network_mode() {
    let caller = CallerFixture::new().await;
    let own = fs::read_to_string("/proc/sys/kernel/hostname")
        .expect("the kernel has one")
        .trim()
        .to_owned();
    let (apart, _) = caller
        .sandbox(|spec| {
            (spec.network, spec.uts) = (SandboxNetwork::Host, UtsMode::Own);
            spec.hostname = "apart".to_owned();
        })
        .await;
    let (same, _) = caller
        .sandbox(|spec| {
            (spec.network, spec.uts) = (SandboxNetwork::Isolated, UtsMode::Host);
            spec.hostname = String::new();
        })
        .await;
    for (sandbox, expected) in [(apart, "apart"), (same, own.as_str())] {
        let task = caller.task(sandbox, "exec sleep 1000", |_| {}).await;
        assert_eq!(
            caller
                .shell_output(task, "hostname; cat /etc/hostname")
                .await,
            format!("{expected}\n{expected}")
        );
    }
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cgroup_namespace_mode_is_applied() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let link = |path: &str| {
        fs::read_link(path)
            .expect("the kernel has it")
            .display()
            .to_string()
    };
    let of_host = link("/proc/self/ns/cgroup");
    for (asked, is_own) in [
        (CgroupNamespace::Private, true),
        (CgroupNamespace::Host, false),
    ] {
        let task = caller
            .task(sandbox, "exec sleep 1000", |spec| {
                spec.cgroup_namespace = Some(asked)
            })
            .await;
        let pid = caller
            .backend
            .inspect_task(task)
            .await
            .expect("it runs")
            .pid
            .expect("it has a process");
        let mut seen = String::new();
        // The runtime's own is there first.
        let settled = eventually(Duration::from_secs(5), || {
            seen = link(&format!("/proc/{pid}/ns/cgroup"));
            (seen != of_host) == is_own
        });
        assert!(settled, "{asked:?}: {seen}, the host's is {of_host}");
    }
    caller.close().await;
}
