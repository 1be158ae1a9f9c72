//! Kills during PullImage, RemoveImage, and the unpacking of an image that was stored already.

use std::fs::File;

use switchyard_crash_points::CrashPoint::*;
use switchyard_crash_points::Operation;
use switchyard_tests::cri::image_spec;
use switchyard_tests::host::eventually;
use switchyard_tests::image::{Family, Image, Index, busybox, random_layer};
use switchyard_tests::leak_scan::{NAMESPACE, ctr, labelled_snapshots, stored};
use tonic::Code;

use super::cases::KillCase;
use super::fixture::{KillFixture, KillPoint, LIMIT};

/// The label of a snapshot whose files may not have been synced to disk.
const UNSYNCED: &str = "switchyard.io/unsynced";

pub(super) const KILLS: &[KillCase] = &[
    KillCase::of(pull, Operation::PullImage).and(&[
        (LayerCommitted, 2),
        (LayerUnpacked, 2),
        (ImageNamed, 2),
    ]),
    KillCase::of(replace, Operation::ReplaceBlob).and(&[(BlobDropped, 2), (CollectionLeased, 2)]),
    KillCase::of(unpack, Operation::UnpackImage).and(&[
        (LayerPrepared, 1),
        (LayerApplied, 1),
        (LayerUnpacked, 1),
    ]),
    KillCase::of(flush, Operation::SyncLayers),
    KillCase::of(unpack_anew, Operation::RecoverLayers).and(&[(RecoveryLayerGone, 2)]),
    KillCase::of(remove, Operation::RemoveImage).and(&[(ImageUnnamed, 2)]),
    KillCase::of(remove_shared, Operation::ReleaseImage).and(&[(ImageLetGo, 2)]),
];

/// Pushes an image with two layers that no other image has; its reference.
fn push(fixture: &KillFixture, kill: KillPoint, what: u64) -> (String, Image) {
    let seed = 1000 * what + 10 * (kill.step as u64) + u64::from(kill.nth);
    let image = busybox()
        .layer(random_layer(600_000, seed))
        .layer(random_layer(600_000, seed + 500_000))
        .build();
    let name = format!("kills/image:{seed}");
    fixture
        .node
        .registry()
        .push_index(&name, &Index::new(Family::Oci, vec![image.clone()]));
    (fixture.node.registry().reference(&name), image)
}

/// Fails if a pull that was interrupted leaves more than what has arrived, which is kept for the next pull of the image.
#[track_caller]
fn assert_only_a_download_is_left(fixture: &KillFixture, kill: KillPoint) {
    fixture.assert_nothing_left_but(kill, |finding| {
        finding.starts_with("lease ") && finding.contains("-pull-")
            || finding.starts_with("ingest layer-")
            || finding.starts_with("directory ") && finding.contains(".content/ingest/")
    });
}

pub(super) fn pull(fixture: &KillFixture, kill: KillPoint) {
    let (reference, _) = push(fixture, kill, 1);
    fixture.killed_during(kill, || fixture.node.cri().pull(&reference, None));
    assert_only_a_download_is_left(fixture, kill);
    let id = fixture
        .node
        .cri()
        .pull(&reference, None)
        .expect("it can be sent again");
    let images = fixture
        .node
        .cri()
        .list_images()
        .expect("they can be listed");
    assert_eq!(
        images.iter().filter(|image| image.id == id).count(),
        1,
        "{kill:?}: {images:#?}"
    );
    fixture.with_pod("pulled", |pod| {
        let seen = pod.run_shell("ls /random | wc -l", |config| {
            config.image = Some(image_spec(&reference))
        });
        assert_eq!(seen, "2", "{kill:?}");
    });
    fixture
        .node
        .cri()
        .remove_image(&reference)
        .expect("it can be removed");
    fixture.assert_stored_as_before(kill);
    fixture.assert_nothing_left(kill);
}

/// The snapshots that are marked as not synced.
fn unsynced(fixture: &KillFixture) -> Vec<String> {
    let socket = fixture
        .node
        .root()
        .containerd_socket()
        .expect("containerd has been started");
    labelled_snapshots(&socket, NAMESPACE, UNSYNCED)
}

fn snapshots(fixture: &KillFixture) -> Vec<String> {
    let socket = fixture
        .node
        .root()
        .containerd_socket()
        .expect("containerd has been started");
    let stored = stored(&socket, NAMESPACE);
    stored
        .iter()
        .filter_map(|item| item.strip_prefix("snapshot "))
        .map(str::to_owned)
        .collect()
}

/// Marks a snapshot as created in this boot and not synced; with no boot, as synced.
fn label(fixture: &KillFixture, name: &str, boot: &str) {
    let socket = fixture
        .node
        .root()
        .containerd_socket()
        .expect("containerd has been started");
    let answer = ctr(
        &socket,
        NAMESPACE,
        &["snapshots", "label", name, &format!("{UNSYNCED}={boot}")],
    );
    assert!(
        answer.iter().all(|line| !line.contains("rpc error")),
        "{answer:?}"
    );
}

#[track_caller]
fn wait_synced(fixture: &KillFixture, kill: KillPoint) {
    let synced = eventually(LIMIT, || unsynced(fixture).is_empty());
    assert!(
        synced,
        "{kill:?}: {:?} are not synced\n{}",
        unsynced(fixture),
        fixture.node.daemon().tail()
    );
}

/// Layers are synced after the pull has been answered: if the daemon is killed meanwhile, its successor syncs
/// them.
fn flush(fixture: &KillFixture, kill: KillPoint) {
    let (reference, _) = push(fixture, kill, 4);
    fixture.node.daemon().kill_at(&[(kill.step, kill.nth)]);
    // The answer and the kill may come in either order.
    let answer = fixture.node.cri().pull(&reference, None);
    fixture.node.daemon().wait_killed();
    fixture.node.daemon().restart();
    fixture.assert_undisturbed(kill);
    wait_synced(fixture, kill);
    let images = fixture
        .node
        .cri()
        .list_images()
        .expect("they can be listed");
    assert!(
        answer
            .as_ref()
            .map_or(true, |id| images.iter().any(|image| image.id == *id)),
        "{kill:?}: {images:#?}"
    );
    fixture
        .node
        .cri()
        .pull(&reference, None)
        .expect("it can be sent again");
    fixture
        .node
        .cri()
        .remove_image(&reference)
        .expect("it can be removed");
    fixture.assert_stored_as_before(kill);
    fixture.assert_nothing_left(kill);
}

/// All layers are marked as not synced since an earlier boot: those that no container uses are unpacked
/// again, the others are left alone.
fn unpack_anew(fixture: &KillFixture, kill: KillPoint) {
    let (reference, _) = push(fixture, kill, 5);
    let before = snapshots(fixture);
    fixture
        .node
        .cri()
        .pull(&reference, None)
        .expect("it can be pulled");
    wait_synced(fixture, kill);
    for name in snapshots(fixture)
        .iter()
        .filter(|name| name.starts_with("sha256:"))
    {
        label(fixture, name, "another");
    }
    fixture.node.daemon().kill9();
    fixture.node.daemon().kill_at(&[(kill.step, kill.nth)]);
    fixture.node.daemon().spawn();
    fixture.node.daemon().wait_killed();
    fixture.node.daemon().restart();
    fixture.assert_undisturbed(kill);
    assert_eq!(snapshots(fixture), before, "{kill:?}");
    // No new container runs on the layers that the bystander uses, until it is known that they lack nothing.
    fixture.with_pod("refused", |pod| {
        let mut config = fixture.node.container("main", &["true"]);
        config.image = Some(image_spec(&reference));
        let refused = pod
            .try_create(&config)
            .expect_err("its lowest layer may lack files");
        assert!(
            refused.message().contains("since a power cut"),
            "{kill:?}: {refused}"
        );
    });
    let used = unsynced(fixture);
    assert!(!used.is_empty(), "{kill:?}");
    for name in used {
        label(fixture, &name, "");
    }
    fixture.with_pod("anew", |pod| {
        let seen = pod.run_shell("ls /random | wc -l", |config| {
            config.image = Some(image_spec(&reference))
        });
        assert_eq!(seen, "2", "{kill:?}");
    });
    fixture
        .node
        .cri()
        .remove_image(&reference)
        .expect("it can be removed");
    fixture.assert_stored_as_before(kill);
    fixture.assert_nothing_left(kill);
}

/// The manifest and a layer of an image are damaged, and its snapshots are gone: the next pull replaces both. What the
/// manifest refers to outlives its replacement, so that the layer is found damaged and not just absent.
fn replace(fixture: &KillFixture, kill: KillPoint) {
    let (reference, image) = push(fixture, kill, 7);
    let socket = fixture
        .node
        .root()
        .containerd_socket()
        .expect("containerd has been started");
    let before = stored(&socket, NAMESPACE);
    fixture
        .node
        .cri()
        .pull(&reference, None)
        .expect("it can be pulled");
    remove_snapshots_since(fixture, &before);
    for digest in [&image.manifest.digest, &image.layers[2].digest] {
        let file = File::options()
            .write(true)
            .open(fixture.node.root().blob(digest));
        file.and_then(|file| file.set_len(3)).expect("it is stored");
    }
    fixture.killed_during(kill, || fixture.node.cri().pull(&reference, None));
    assert_only_a_download_is_left(fixture, kill);
    fixture
        .node
        .cri()
        .pull(&reference, None)
        .expect("it can be sent again");
    fixture.with_pod("replaced", |pod| {
        let seen = pod.run_shell("ls /random | wc -l", |config| {
            config.image = Some(image_spec(&reference))
        });
        assert_eq!(seen, "2", "{kill:?}");
    });
    fixture
        .node
        .cri()
        .remove_image(&reference)
        .expect("it can be removed");
    fixture.assert_stored_as_before(kill);
    fixture.assert_nothing_left(kill);
}

/// Removes the snapshots that were not stored before, of an image with two layers of its own.
fn remove_snapshots_since(fixture: &KillFixture, before: &[String]) {
    let socket = fixture
        .node
        .root()
        .containerd_socket()
        .expect("containerd has been started");
    let new: Vec<_> = stored(&socket, NAMESPACE)
        .into_iter()
        .filter(|item| !before.contains(item))
        .collect();
    let snapshots: Vec<_> = new
        .iter()
        .filter_map(|item| item.strip_prefix("snapshot "))
        .collect();
    assert_eq!(snapshots.len(), 2, "{new:?}");
    // Each removal is tried twice: that of the lower snapshot is refused until the upper one is removed.
    let answers: Vec<_> = snapshots
        .iter()
        .chain(&snapshots)
        .map(|name| ctr(&socket, NAMESPACE, &["snapshots", "rm", name]))
        .collect();
    let left = stored(&socket, NAMESPACE);
    assert!(
        !left
            .iter()
            .any(|item| new.contains(item) && item.starts_with("snapshot")),
        "{answers:?}: {left:?}"
    );
}

/// The snapshots of an image are removed, as if it had been imported without unpacking: creating a container
/// unpacks it.
fn unpack(fixture: &KillFixture, kill: KillPoint) {
    let (reference, _) = push(fixture, kill, 2);
    let socket = fixture
        .node
        .root()
        .containerd_socket()
        .expect("containerd has been started");
    let before = stored(&socket, NAMESPACE);
    fixture
        .node
        .cri()
        .pull(&reference, None)
        .expect("it can be pulled");
    remove_snapshots_since(fixture, &before);
    let mut pod = None;
    fixture.killed_during(kill, || {
        let pod = pod.insert(fixture.node.pod("unpack"));
        let mut config = fixture.node.container("main", &["true"]);
        config.image = Some(image_spec(&reference));
        pod.try_create(&config)
    });
    let pod = pod.expect("it was made");
    let seen = pod.run_shell("ls /random | wc -l", |config| {
        config.image = Some(image_spec(&reference))
    });
    assert_eq!(seen, "2", "{kill:?}");
    drop(pod);
    fixture
        .node
        .cri()
        .remove_image(&reference)
        .expect("it can be removed");
    fixture.assert_stored_as_before(kill);
    fixture.assert_nothing_left(kill);
}

fn remove(fixture: &KillFixture, kill: KillPoint) {
    let (reference, _) = push(fixture, kill, 3);
    fixture
        .node
        .cri()
        .pull(&reference, None)
        .expect("it can be pulled");
    fixture.killed_during(kill, || fixture.node.cri().remove_image(&reference));
    fixture
        .node
        .cri()
        .remove_image(&reference)
        .expect("it can be sent again");
    fixture.assert_stored_as_before(kill);
    fixture.assert_nothing_left(kill);
}

/// An image that another owner holds as well keeps all its names, and is no longer the kubelet's.
fn remove_shared(fixture: &KillFixture, kill: KillPoint) {
    let (reference, _) = push(fixture, kill, 6);
    let id = fixture
        .node
        .cri()
        .pull(&reference, None)
        .expect("it can be pulled");
    let images = fixture
        .node
        .cri()
        .list_images()
        .expect("they can be listed");
    let names: Vec<_> = images
        .iter()
        .filter(|image| image.id == id)
        .flat_map(|image| image.repo_tags.iter().chain(&image.repo_digests))
        .cloned()
        .collect();
    let target = names
        .iter()
        .find_map(|name| name.split_once('@'))
        .expect("it has a digest")
        .1
        .to_owned();
    let hold = |word: &str| {
        let socket = fixture
            .node
            .root()
            .containerd_socket()
            .expect("containerd has been started");
        for name in &names {
            let label = format!("switchyard.io/pulled.nomad={word}");
            let answer = ctr(&socket, NAMESPACE, &["images", "label", name, &label]);
            assert!(
                answer.iter().all(|line| !line.contains("failed")),
                "{answer:?}"
            );
        }
    };
    hold(&format!("open {target}"));
    fixture.killed_during(kill, || fixture.node.cri().remove_image(&reference));
    let again = fixture.node.cri().remove_image(&reference);
    let kept = again.expect_err("somebody else holds it");
    assert_eq!(kept.code(), Code::FailedPrecondition, "{kill:?}: {kept}");
    assert!(kept.message().contains("held by nomad"), "{kill:?}: {kept}");
    let images = fixture
        .node
        .cri()
        .list_images()
        .expect("they can be listed");
    let left = images
        .iter()
        .find(|image| image.id == id)
        .expect("somebody else holds it");
    assert_eq!(
        left.repo_tags.len() + left.repo_digests.len(),
        names.len(),
        "{kill:?}: {left:?}"
    );
    assert!(
        left.pinned,
        "{kill:?}: the kubelet need not try to remove it"
    );
    hold("");
    fixture
        .node
        .cri()
        .remove_image(&reference)
        .expect("nobody holds it");
    fixture.assert_stored_as_before(kill);
    fixture.assert_nothing_left(kill);
}
