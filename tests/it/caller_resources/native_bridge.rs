//! The gateway's own bridge without plugins: what holds as with plugins, and what the daemon alone does.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;

use switchyard_containerd::config::BridgeDriverChoice::{self, Cni, Native};
use switchyard_core::ErrorKind;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{PortMapping, Protocol, Subnet};
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::host::{eventually, forward_ipv6, free_port};
use switchyard_tests::prereq;

use super::bridge::{
    LIMIT, SERVE, ask_for_a_mac_address, ask_for_an_address, get_distinct_addresses,
    have_both_families, is_greeted, keep_an_address, mapping, publish_a_port, reach_its_own_port,
};
use super::{CallerFixture, bridged};

tests_with_driver! {
    Native:
    port_is_published_only_on_the_given_address => publish_a_port,
    a_task_reaches_its_own_published_port => reach_its_own_port,
    sandbox_has_requested_mac_address_and_host_entries => ask_for_a_mac_address,
    sandbox_on_a_bridge_of_both_families_has_files_that_name_both => have_both_families,
    sandbox_gets_its_requested_address_or_fails => ask_for_an_address,
    concurrent_sandboxes_get_distinct_addresses_and_release_them => get_distinct_addresses,
    restarted_sandbox_keeps_its_address_or_is_refused => keep_an_address,
}

/// A sandbox on the bridge with a task that greets at a published port, and the address of that.
async fn greeting(caller: &CallerFixture) -> (SandboxId, SocketAddr) {
    let published = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let ports = vec![mapping(
        Protocol::Tcp,
        Ipv4Addr::LOCALHOST,
        published.port(),
    )];
    let (sandbox, _) = caller
        .sandbox(|spec| spec.network = bridged(|network| network.ports = ports))
        .await;
    caller.task(sandbox, SERVE, |_| {}).await;
    assert_greets(published);
    (sandbox, published)
}

#[track_caller]
fn assert_greets(published: SocketAddr) {
    assert!(
        eventually(LIMIT, || is_greeted(published)),
        "nobody answers on {published}"
    );
}

/// Replaces the backend by one with this driver, as a restart with another configuration.
async fn reopen(caller: &mut CallerFixture, driver: BridgeDriverChoice) {
    let change = |settings: &mut switchyard_containerd::Settings| {
        settings.network.bridge.driver = Some(driver);
    };
    caller.backend = tokio::task::block_in_place(|| caller.fixture.reopen_with(change));
    caller.backend.recover().await.expect("it recovers");
}

fn is_made_by_the_daemon(caller: &CallerFixture, id: SandboxId) -> bool {
    let sandboxes = caller.fixture.root().state().join("sandboxes");
    let journal = fs::read_to_string(sandboxes.join(id.to_string()).join("cni.json"));
    let journal = journal.expect("it is attached");
    journal.contains("\"switchyard.driver\":\"native\"")
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_another_program_removes_come_back() {
    let caller = CallerFixture::with_driver(Native).await;
    let (_, published) = greeting(&caller).await;
    for _ in 0..2 {
        caller.fixture.root().bridge().remove_tables();
        assert_greets(published);
    }
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_were_removed_while_no_daemon_ran_come_back_with_the_next_one() {
    let mut caller = CallerFixture::with_driver(Native).await;
    let (sandbox, published) = greeting(&caller).await;
    caller.backend = tokio::task::block_in_place(|| caller.fixture.reopen_with(|_| {}));
    caller.fixture.root().bridge().remove_tables();
    caller.backend.recover().await.expect("it recovers");
    assert_greets(published);
    let stopped = caller.backend.stop_sandbox(sandbox).await;
    stopped.expect("it can be stopped");
    assert!(!is_greeted(published), "{published} still leads somewhere");
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attachment_is_undone_by_whoever_made_it_whatever_the_key_says_by_then() {
    let mut caller = CallerFixture::with_driver(Native).await;
    let (by_daemon, first) = greeting(&caller).await;
    assert!(is_made_by_the_daemon(&caller, by_daemon));
    reopen(&mut caller, Cni).await;
    let (by_plugins, second) = greeting(&caller).await;
    assert!(!is_made_by_the_daemon(&caller, by_plugins));
    assert_greets(first);
    // The tables are kept for what is attached, also without the key.
    caller.fixture.root().bridge().remove_tables();
    assert_greets(first);
    let stop = async |caller: &CallerFixture, id| {
        let stopped = caller.backend.stop_sandbox(id).await;
        stopped.expect("it can be stopped");
    };
    stop(&caller, by_daemon).await;
    assert!(!is_greeted(first) && is_greeted(second));
    reopen(&mut caller, Native).await;
    assert!(is_greeted(second));
    stop(&caller, by_plugins).await;
    // Plugins end behind the answer.
    assert!(eventually(LIMIT, || !is_greeted(second)));
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn port_on_all_addresses_of_a_family_is_published_on_each() {
    let caller = CallerFixture::with_driver(Native).await;
    let port = free_port();
    let ports = vec![mapping(Protocol::Tcp, Ipv4Addr::UNSPECIFIED, port)];
    let (sandbox, _) = caller
        .sandbox(|spec| spec.network = bridged(|network| network.ports = ports))
        .await;
    caller.task(sandbox, SERVE, |_| {}).await;
    for host in [
        Ipv4Addr::LOCALHOST,
        caller.fixture.root().bridge().gateway(),
    ] {
        assert_greets((host, port).into());
    }
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn port_on_the_loopback_address_of_ipv6_is_refused_before_anything_is_made() {
    let caller = CallerFixture::with_driver(Native).await;
    let port = PortMapping {
        protocol: Protocol::Tcp,
        container_port: 80,
        host_port: free_port(),
        host_ip: Some(Ipv6Addr::LOCALHOST.into()),
    };
    let refused = caller
        .try_sandbox(|spec| spec.network = bridged(|network| network.ports = vec![port]))
        .await
        .expect_err("no packet from there is forwarded");
    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
    assert!(refused.report().contains("a proxy"), "{}", refused.report());
    assert_eq!(
        caller.fixture.root().bridge().in_use(),
        Vec::<String>::new()
    );
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_says_who_attaches_to_the_bridge() {
    let mut caller = CallerFixture::with_driver(Native).await;
    let driver = |caller: &CallerFixture| {
        let facts = caller.backend.status().facts;
        facts.get("network.bridge.driver").cloned()
    };
    assert_eq!(driver(&caller).as_deref(), Some("native"));
    reopen(&mut caller, Cni).await;
    assert_eq!(driver(&caller).as_deref(), Some("cni"));
    caller.close().await;
}

/// The id of the node, from which a range of IPv6 follows.
const MACHINE_ID: &str = "/etc/machine-id";

/// A backend whose own bridge may have a range of IPv6 by itself, on a node that forwards IPv6. `prepare` gets the name of the bridge first.
async fn with_own_ipv6(prepare: impl FnOnce(&str)) -> CallerFixture {
    let id = fs::read_to_string(MACHINE_ID).unwrap_or_default();
    assert!(
        id.trim().len() == 32,
        "{MACHINE_ID} has no id of the node ({id:?}): systemd-machine-id-setup writes one (package systemd)"
    );
    forward_ipv6();
    let fixture = tokio::task::block_in_place(|| {
        BackendFixture::with(|settings| {
            let bridge = &mut settings.network.bridge;
            bridge.driver = Some(Native);
            bridge.ipv6 = true;
            prepare(&bridge.name);
        })
    });
    CallerFixture::with_fixture(fixture).await
}

/// Changes network devices of the node.
fn ip_link(arguments: &[&str]) {
    let ip = prereq::require("ip", "iproute2");
    let changed = Command::new(ip).arg("link").args(arguments).status();
    let changed = changed.expect("it can be run");
    assert!(changed.success(), "{arguments:?}");
}

/// Reads what is on record of the range of IPv6.
fn record(caller: &CallerFixture) -> String {
    let root = caller.fixture.root();
    let name = format!("network/{}.ipv6", root.bridge().bridge());
    let text = fs::read_to_string(root.state().join(name));
    text.expect("it is decided at the first start")
}

#[tokio::test(flavor = "multi_thread")]
async fn bridge_that_is_made_has_a_range_of_ipv6_whatever_comes() {
    let mut caller = with_own_ipv6(|_| {}).await;
    let noted = record(&caller);
    let range: Subnet = noted.trim().parse().expect("it is a range");
    let mut sandboxes = Vec::new();
    let name = caller.fixture.root().bridge().bridge().to_owned();
    // The first of them makes the bridge.
    for driver in [Native, Native, Cni, Native] {
        if driver == Cni {
            // The kernel takes addresses of IPv6 from it, which does not change what it was made with.
            ip_link(&["set", name.as_str(), "down"]);
            ip_link(&["set", name.as_str(), "up"]);
        }
        reopen(&mut caller, driver).await;
        assert_eq!(record(&caller), noted);
        let facts = caller.backend.status().facts;
        let summary = facts.get("network.bridge").cloned().unwrap_or_default();
        assert!(
            summary.ends_with(&format!(" {range}")),
            "{driver:?}: {summary}"
        );
        let (sandbox, details) = caller.sandbox(|spec| spec.network = bridged(|_| {})).await;
        sandboxes.push(sandbox);
        let [four, six] = details.ips[..] else {
            panic!("{driver:?}: {details:?}");
        };
        assert!(
            four.is_ipv4() && range.contains(six),
            "{driver:?}: {details:?}"
        );
    }
    for sandbox in sandboxes {
        let removed = async {
            caller.backend.stop_sandbox(sandbox).await?;
            caller.backend.remove_sandbox(sandbox).await
        };
        removed
            .await
            .expect("it goes, whoever has made its network");
    }
    assert_eq!(
        caller.fixture.root().bridge().in_use(),
        Vec::<String>::new()
    );
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bridge_that_is_there_gets_no_range_of_ipv6() {
    let mut caller = with_own_ipv6(|name| {
        ip_link(&["add", name, "type", "bridge"]);
    })
    .await;
    for _ in 0..2 {
        assert_eq!(record(&caller), "none\n");
        let (_, details) = caller.sandbox(|spec| spec.network = bridged(|_| {})).await;
        assert!(
            details.ips.len() == 1 && details.ips[0].is_ipv4(),
            "{details:?}"
        );
        reopen(&mut caller, Native).await;
    }
    caller.close().await;
}
