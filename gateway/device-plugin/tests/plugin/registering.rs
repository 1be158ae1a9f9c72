//! The resources are registered with every kubelet that starts, however its start looks from outside.

use std::fs;
use std::time::{Duration, Instant};

use switchyard_core::id::Owner;
use switchyard_kubelet::{Kubelet, Options, remove_sockets};

use crate::allocating::{run, token};
use crate::node::{PluginFixture, TPU, group, inventory, registered};

/// Limit for a registration on a machine that is busy with other tests. It normally takes some milliseconds.
const SOON: Duration = Duration::from_secs(5);

#[track_caller]
fn check_soon(kubelet: &Kubelet) {
    let last = kubelet
        .registrations()
        .last()
        .expect("something is registered")
        .clone();
    let took = last.answered.duration_since(kubelet.began());
    assert!(took < SOON, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_was_there_before_is_registered_with() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device-plugins");
    let kubelet = Kubelet::start(&path, Options::default());
    let node = PluginFixture::configured(inventory([group(TPU, 4, 1)]), |config, _| {
        config.directory = path
    })
    .await;
    registered(&kubelet, 1).await;
    assert_eq!(kubelet.capacity(TPU), (4, 4));
    assert_eq!(node.registrations.resources(), 1);
    node.follows(1).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kubelet_that_starts_is_registered_with_on_a_new_socket() {
    let node =
        PluginFixture::with(inventory([group(TPU, 4, 1), group("acme.com/fpga", 2, 3)])).await;
    let mut endpoints = Vec::new();
    let mut kubelet = node.followed(2).await;
    for _ in 0..10 {
        check_soon(&kubelet);
        assert_eq!(
            (kubelet.capacity(TPU), kubelet.capacity("acme.com/fpga")),
            ((4, 4), (6, 6))
        );
        endpoints.push(node.endpoint(&kubelet, TPU));
        let checkpoint = kubelet.kill();
        kubelet = Kubelet::start(
            node.directory(),
            Options {
                checkpoint,
                ..Options::default()
            },
        );
        registered(&kubelet, 2).await;
    }
    endpoints.sort();
    endpoints.dedup();
    assert_eq!(endpoints.len(), 10);
    // The sockets of earlier registrations are gone.
    let ours = fs::read_dir(node.directory()).unwrap().count();
    assert_eq!(ours, 3, "a socket for each resource, and the kubelet's");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_starts_while_its_predecessor_lives_is_registered_with() {
    let node = PluginFixture::with(inventory([group(TPU, 4, 1)])).await;
    let old = node.followed(1).await;
    // All sockets are deleted, including the old kubelet's, but its connections persist.
    let new = node.followed(1).await;
    check_soon(&new);
    drop(old);
    registered(&new, 1).await;
    assert_eq!(new.capacity(TPU), (4, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_is_moved_into_place_is_a_new_kubelet() {
    let node = PluginFixture::with(inventory([group(TPU, 4, 1)])).await;
    let _old = node.followed(1).await;
    let aside = node.path("aside");
    let new = Kubelet::start(&aside, Options::default());
    // The new kubelet connects to endpoints in the directory at its original path.
    fs::rename(node.directory(), node.path("device-plugins-old")).unwrap();
    fs::rename(&aside, node.directory()).unwrap();
    std::os::unix::fs::symlink(node.directory(), &aside).unwrap();
    registered(&new, 1).await;
    assert_eq!(new.capacity(TPU), (4, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_the_kubelet_breaks_off_is_made_anew_soon() {
    let node = PluginFixture::with(inventory([group(TPU, 4, 1)])).await;
    let kubelet = node.followed(1).await;
    for round in 2..5 {
        kubelet.disconnect_all();
        kubelet
            .wait_until("it is registered again", |kubelet| {
                kubelet.registrations().len() == round
            })
            .await;
        registered(&kubelet, round).await;
    }
    node.follows(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_that_somebody_deletes_are_no_end_of_a_registration() {
    let node = PluginFixture::with(inventory([group(TPU, 4, 1)])).await;
    let kubelet = node.followed(1).await;
    remove_sockets(node.directory());
    node.change_group(|group| group.devices.truncate(3));
    kubelet
        .wait_until("a change is seen", |kubelet| {
            kubelet.capacity(TPU) == (4, 3)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_hangs_holds_nothing_up() {
    let node = PluginFixture::with(inventory([group(TPU, 4, 1)])).await;
    let hangs = Kubelet::start(
        node.directory(),
        Options {
            hangs: true,
            ..Options::default()
        },
    );
    let kubelet = node.followed(1).await;
    check_soon(&kubelet);
    drop(hangs);
    let _hangs = Kubelet::start(
        node.directory(),
        Options {
            hangs: true,
            ..Options::default()
        },
    );
    let began = Instant::now();
    node.stop().await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_resources_are_registered_in_a_moment() {
    let groups = (0..64).map(|number| group(&format!("acme.com/r{number}"), 100, 1));
    let node = PluginFixture::with(inventory(groups)).await;
    let kubelet = node.followed(64).await;
    drop(kubelet);
    let kubelet = node.followed(64).await;
    let began = kubelet.began();
    let registrations = kubelet.registrations();
    let called = registrations
        .iter()
        .map(|one| one.called.duration_since(began))
        .max()
        .unwrap();
    let answered = registrations
        .iter()
        .map(|one| one.answered.duration_since(began))
        .max()
        .unwrap();
    println!(
        "64 resources of 100 devices: the last Register was called after {called:?}, answered after {answered:?}"
    );
    assert!(answered < SOON, "{answered:?}");
    node.follows(64).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_that_pods_may_have_devices_of_are_registered_before_all_others() {
    let names: Vec<String> = (0..24)
        .map(|number| format!("acme.com/r{number:02}"))
        .collect();
    let node = PluginFixture::with(inventory(names.iter().map(|name| group(name, 4, 1)))).await;
    let kubelet = node.followed(names.len()).await;
    // The last ones in alphabetical order: of a pod that runs, of one that has stopped, and of one that has
    // not started.
    let [runs, stopped, waits] = ["acme.com/r21", "acme.com/r22", "acme.com/r23"];
    for (pod, resource) in [("runs", runs), ("stopped", stopped), ("waits", waits)] {
        let given = kubelet.admit(pod, "app", &[(resource, 1)]).await.unwrap();
        if pod != "waits" {
            let sandbox = run(&node, pod, token(&given)).await;
            if pod == "stopped" {
                node.gateway
                    .scope(Owner::Kubernetes)
                    .sandboxes()
                    .stop(&sandbox)
                    .await
                    .unwrap();
            }
        }
    }
    // A device that another owner has is not urgent for a kubelet.
    node.gateway
        .scope(Owner::Nomad)
        .devices()
        .lease(&["acme-com-r20-000".parse().unwrap()])
        .await
        .unwrap();
    let mut checkpoint = kubelet.kill();
    for _ in 0..5 {
        let kubelet = Kubelet::start(
            node.directory(),
            Options {
                checkpoint,
                ..Options::default()
            },
        );
        registered(&kubelet, names.len()).await;
        let (first, rest): (Vec<_>, Vec<_>) = kubelet
            .registrations()
            .into_iter()
            .partition(|one| [runs, stopped, waits].contains(&one.resource.as_str()));
        assert_eq!((first.len(), rest.len()), (3, names.len() - 3));
        let through = first.iter().map(|one| one.answered).max().unwrap();
        let early: Vec<_> = rest.iter().filter(|one| one.called < through).collect();
        assert!(early.is_empty(), "{early:?}");
        for pod in ["runs", "stopped", "waits"] {
            kubelet.readmit(pod).unwrap();
        }
        checkpoint = kubelet.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_watcher_finds_what_is_to_be_found() {
    let node = PluginFixture::configured(inventory([group(TPU, 4, 1)]), |config, dir| {
        config.plugin_watcher_directory = Some(dir.join("plugins_registry"));
    })
    .await;
    let registry = node.path("plugins_registry");
    let options = || Options {
        plugins_registry: Some(registry.clone()),
        ..Options::default()
    };
    fs::create_dir(&registry).unwrap();
    let kubelet = Kubelet::start(node.directory(), options());
    registered(&kubelet, 1).await;
    // A kubelet that starts finds the existing socket again.
    let endpoint = kubelet.registrations()[0].endpoint.clone();
    assert!(registry.join(endpoint).exists());
    drop(kubelet);
    let kubelet = Kubelet::start(node.directory(), options());
    registered(&kubelet, 1).await;
    kubelet.disconnect_all();
    kubelet
        .wait_until("it is found again", |kubelet| {
            kubelet.registrations().len() == 2
        })
        .await;
    registered(&kubelet, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_without_devices_is_registered_so_that_no_pod_starts_without_one() {
    let node = PluginFixture::with(inventory([group(TPU, 0, 1)])).await;
    let kubelet = node.kubelet();
    kubelet
        .wait_until("it is registered", |kubelet| {
            kubelet.registrations().len() == 1
        })
        .await;
    let refused = kubelet.admit("pod", "app", &[(TPU, 1)]).await.unwrap_err();
    assert!(refused.contains("Requested: 1, Available: 0"), "{refused}");
}
