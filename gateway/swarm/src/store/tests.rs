//! The files of a membership: what is stored, what is read back, and what damage does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{
    DEPARTURE, DEVICE_CHECK, Departure, DepartureCause, FILES, JOIN, MANAGERS, NODE, PendingJoin,
    ROOTS, Store,
};
use crate::certificates::{NodeChain, RootBundle};
use crate::error::Error;
use crate::identity::Identity;
use crate::key::NodeKey;
use crate::managers::{Managers, Peer};
use crate::offer::DeviceCheck;
use crate::testing::TestAuthority;
use crate::token::RootDigest;

fn now() -> SystemTime {
    SystemTime::now() + Duration::from_secs(60)
}

fn identity(authority: &TestAuthority) -> Identity {
    let key = NodeKey::generate().unwrap();
    let request = key.certificate_request().unwrap();
    let chain = NodeChain::from_pem(&authority.issue(&request, "c", "swarm-worker", "n")).unwrap();
    Identity::new(
        RootBundle::from_pem(&authority.root()).unwrap(),
        chain,
        key,
        now(),
    )
    .unwrap()
}

fn pending(roots: RootDigest) -> PendingJoin {
    let key = NodeKey::generate().unwrap();
    PendingJoin {
        node: "n".to_owned(),
        roots,
        request: key.certificate_request().unwrap(),
        key,
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn membership_is_read_back_and_only_root_can_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new(dir.path(), "a");
    let store = Store::new(dir.path().join("state/swarm"));
    assert!(store.load(now()).unwrap().is_none());
    let identity = identity(&authority);
    store.save_join(&pending(RootDigest::of(b"x"))).unwrap();
    store.save_joined(&identity).unwrap();
    let read = store.load(now()).unwrap().unwrap();
    assert_eq!(read.tls_info(), identity.tls_info());
    assert_eq!(read.chain(), identity.chain());
    assert_eq!(
        read.key().public_key().unwrap(),
        identity.key().public_key().unwrap()
    );
    let dir = dir.path().join("state/swarm");
    assert_eq!(names(&dir), [NODE, ROOTS]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for name in names(&dir) {
        assert_eq!(mode(&dir.join(name)), 0o600);
    }
}

#[test]
fn files_in_pem_are_what_was_issued_and_then_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new(dir.path(), "a");
    let store = Store::new(dir.path().join("swarm"));
    let identity = identity(&authority);
    store.save_joined(&identity).unwrap();
    let stored = |name: &str| fs::read(dir.path().join("swarm").join(name)).unwrap();
    assert_eq!(stored(ROOTS), identity.roots().pem());
    let node = stored(NODE);
    let key = node.strip_prefix(identity.chain().pem()).unwrap();
    assert_eq!(key.trim_ascii_start(), identity.key().to_pem().as_bytes());
}

fn draft_of(name: &str) -> String {
    format!("{name}.new")
}

#[test]
fn renewed_certificate_replaces_the_old_one_and_its_key_together() {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new(dir.path(), "a");
    let store = Store::new(dir.path().join("swarm"));
    store.save_joined(&identity(&authority)).unwrap();
    let renewed = identity(&authority);
    store.save_certificate(&renewed).unwrap();
    let read = store.load(now()).unwrap().unwrap();
    assert_eq!(
        read.key().public_key().unwrap(),
        renewed.key().public_key().unwrap()
    );
    // A draft of a killed predecessor is no hindrance.
    fs::write(dir.path().join("swarm/node.pem.new"), "torn").unwrap();
    store.save_certificate(&renewed).unwrap();
    assert_eq!(names(&dir.path().join("swarm")), [NODE, ROOTS]);
}

#[test]
fn no_draft_stays_that_may_hold_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new(dir.path(), "a");
    let path = dir.path().join("swarm");
    let store = Store::new(path.clone());
    // A write that fails: nothing can be renamed to a directory.
    fs::create_dir_all(path.join(NODE)).unwrap();
    store.save_certificate(&identity(&authority)).unwrap_err();
    assert_eq!(names(&path), [NODE]);
    fs::remove_dir(path.join(NODE)).unwrap();
    // What a kill leaves, when the join is given up, and when the daemon starts.
    store.save_join(&pending(RootDigest::of(b"x"))).unwrap();
    for name in [NODE, JOIN, ROOTS].map(draft_of) {
        fs::write(path.join(name), "torn").unwrap();
    }
    store.abandon_join().unwrap();
    assert!(!path.exists());
    store.remove_drafts().unwrap();
    store.save_joined(&identity(&authority)).unwrap();
    let drafts = FILES.iter().map(|name| draft_of(name));
    for name in drafts.chain(["node.new", "join.new"].map(str::to_owned)) {
        fs::write(path.join(name), "torn").unwrap();
    }
    store.remove_drafts().unwrap();
    assert_eq!(names(&path), [NODE, ROOTS]);
}

#[test]
fn unfinished_join_is_read_back_with_its_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("swarm"));
    let roots = RootDigest::of(b"ours");
    assert!(store.load_join().unwrap().is_none());
    let join = pending(roots);
    store.save_join(&join).unwrap();
    let read = store.load_join().unwrap().unwrap();
    assert_eq!(
        (read.node, read.request, read.roots),
        (join.node, join.request, roots)
    );
    assert_eq!(
        read.key.public_key().unwrap(),
        join.key.public_key().unwrap()
    );
    assert!(
        store.load(now()).unwrap().is_none(),
        "a join is no membership"
    );
    let path = dir.path().join("swarm").join(JOIN);
    let stored = fs::read_to_string(&path).unwrap();
    let later = stored.replacen('{', "{\"at\": 7,", 1);
    fs::write(&path, later).unwrap();
    assert!(store.load_join().unwrap().is_some());
    let of_version_2 = stored.replace("\"version\": 1", "\"version\": 2");
    for (contents, reason) in [
        ("{}", "line 1"),
        (of_version_2.as_str(), "its version is 2"),
    ] {
        fs::write(&path, contents).unwrap();
        let error = store.load_join().unwrap_err();
        assert!(matches!(error, Error::InvalidFile { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(JOIN) && text.contains(reason), "{text}");
        assert!(!text.contains("PRIVATE"), "{text}");
    }
    store
        .save_managers(&Managers::of([Peer {
            node: String::new(),
            address: "m:1".to_owned(),
        }]))
        .unwrap();
    store.abandon_join().unwrap();
    store.abandon_join().unwrap();
    assert!(!dir.path().join("swarm").exists());
}

#[test]
fn departure_is_kept_by_a_leave_and_ends_with_the_next_membership() {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new(dir.path(), "a");
    let path = dir.path().join("swarm");
    let store = Store::new(path.clone());
    assert_eq!(store.load_departure().unwrap(), None);
    let removed = Departure {
        cluster: "c".to_owned(),
        node: "n".to_owned(),
        cause: DepartureCause::Removed,
    };
    store.save_joined(&identity(&authority)).unwrap();
    store.save_departure(&removed).unwrap();
    assert!(
        store.load(now()).unwrap().is_some(),
        "what was removed can still be named"
    );
    assert_eq!(store.load_departure().unwrap(), Some(removed.clone()));
    let left = Departure {
        cause: DepartureCause::Left,
        ..removed
    };
    store.leave(&left).unwrap();
    store.leave(&left).unwrap();
    assert_eq!(names(&path), [DEPARTURE]);
    assert_eq!(store.load_departure().unwrap(), Some(left));
    store.abandon_join().unwrap();
    assert_eq!(names(&path), [DEPARTURE]);
    store.save_joined(&identity(&authority)).unwrap();
    assert_eq!(store.load_departure().unwrap(), None);
    let later = r#"{"version":1,"cluster":"c","node":"n","cause":"left","at":7}"#;
    fs::write(path.join(DEPARTURE), later).unwrap();
    let departure = store.load_departure().unwrap().unwrap();
    assert_eq!(departure.cause, DepartureCause::Left);
    fs::write(path.join(DEPARTURE), "{\"version\": 2}").unwrap();
    assert!(matches!(
        store.load_departure(),
        Err(Error::InvalidFile { .. })
    ));
    store.wipe().unwrap();
    assert!(!path.exists());
}

#[test]
fn managers_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("swarm"));
    assert_eq!(store.load_managers().unwrap(), Managers::default());
    let managers = Managers::of([Peer {
        node: "m".to_owned(),
        address: "10.0.0.1:2377".to_owned(),
    }]);
    store.save_managers(&managers).unwrap();
    assert_eq!(store.load_managers().unwrap(), managers);
}

#[test]
fn check_of_the_managers_is_read_back_for_the_same_cluster_until_the_node_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new(dir.path(), "a");
    let path = dir.path().join("swarm");
    let store = Store::new(path.clone());
    assert_eq!(store.load_device_check("c").unwrap(), None);
    store.save_joined(&identity(&authority)).unwrap();
    for check in [DeviceCheck::Inverted, DeviceCheck::Plain] {
        store.save_device_check("c", check).unwrap();
        assert_eq!(store.load_device_check("c").unwrap(), Some(check));
        assert_eq!(store.load_device_check("other").unwrap(), None);
    }
    assert_eq!(names(&path), [DEVICE_CHECK, NODE, ROOTS]);
    let stored = path.join(DEVICE_CHECK);
    let mode = fs::metadata(&stored).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let later = r#"{"version":1,"cluster":"c","check":"inverted","at":7}"#;
    fs::write(&stored, later).unwrap();
    let kept = store.load_device_check("c").unwrap();
    assert_eq!(kept, Some(DeviceCheck::Inverted));
    for (contents, reason) in [
        ("", "line 1"),
        ("{}", "line 1"),
        (r#"{"version":1,"cluster":"c","check":"none"}"#, "line 1"),
        (
            r#"{"version":2,"cluster":"c","check":"plain"}"#,
            "its version is 2",
        ),
    ] {
        fs::write(&stored, contents).unwrap();
        let text = store.load_device_check("c").unwrap_err().report();
        assert!(
            text.contains(DEVICE_CHECK) && text.contains(reason),
            "{text}"
        );
        assert!(store.load(now()).unwrap().is_some(), "the node is a member");
    }
    // What is not understood is replaced.
    store.save_device_check("c", DeviceCheck::Plain).unwrap();
    let kept = store.load_device_check("c").unwrap();
    assert_eq!(kept, Some(DeviceCheck::Plain));
    let left = Departure {
        cluster: "c".to_owned(),
        node: "n".to_owned(),
        cause: DepartureCause::Left,
    };
    store.leave(&left).unwrap();
    assert_eq!(names(&path), [DEPARTURE]);
    assert_eq!(store.load_device_check("c").unwrap(), None);
}

type Damage<'a> = Box<dyn Fn(&mut Vec<u8>) + 'a>;

#[test]
fn damaged_files_are_refused_by_name_and_a_leave_ends_that() {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new(dir.path(), "a");
    let other = TestAuthority::new(dir.path(), "b");
    let store = Store::new(dir.path().join("swarm"));
    let foreign_key = NodeKey::generate().unwrap().to_pem();
    let damages: [(&str, Damage<'_>); 6] = [
        (ROOTS, Box::new(Vec::clear)),
        (ROOTS, Box::new(|bytes| *bytes = other.root())),
        (NODE, Box::new(Vec::clear)),
        (NODE, Box::new(|bytes| bytes.truncate(bytes.len() - 100))),
        (
            NODE,
            Box::new(|bytes| bytes.splice(0..0, foreign_key.bytes()).for_each(drop)),
        ),
        (NODE, Box::new(|bytes| bytes.resize(1 << 20, b'x'))),
    ];
    for (name, damage) in damages {
        store.save_joined(&identity(&authority)).unwrap();
        let path = dir.path().join("swarm").join(name);
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let error = store.load(now()).unwrap_err();
        assert!(matches!(error, Error::InvalidFile { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains(dir.path().to_str().unwrap()) && text.contains("switchyard swarm leave"),
            "{text}"
        );
        assert!(!text.contains("PRIVATE"), "{text}");
    }
    fs::remove_file(dir.path().join("swarm").join(ROOTS)).unwrap();
    assert!(matches!(store.load(now()), Err(Error::InvalidFile { .. })));
    store.wipe().unwrap();
    store.wipe().unwrap();
    assert!(!dir.path().join("swarm").exists());
    assert!(store.load(now()).unwrap().is_none());
}

#[tokio::test]
async fn files_are_used_on_a_thread_for_blocking_calls() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("swarm"));
    let own = std::thread::current().id();
    let other = store
        .run(|_| Ok(std::thread::current().id()))
        .await
        .unwrap();
    assert_ne!(own, other);
}

#[test]
fn files_of_the_first_version_are_read_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().to_owned());
    let golden = include_str!("golden/managers.json").trim_end();
    fs::write(dir.path().join(MANAGERS), golden).unwrap();
    let peer = |node: &str, address: &str| Peer {
        node: node.to_owned(),
        address: address.to_owned(),
    };
    let known = Managers::of([peer("m1", "10.0.0.1:2377"), peer("", "10.0.0.2:2377")]);
    assert_eq!(store.load_managers().unwrap(), known);
    store.save_managers(&known).unwrap();
    let written: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join(MANAGERS)).unwrap()).unwrap();
    let expected: serde_json::Value = serde_json::from_str(golden).unwrap();
    let has = |entry: &serde_json::Value| written.as_array().unwrap().contains(entry);
    assert!(expected.as_array().unwrap().iter().all(has), "{written}");

    let golden = include_str!("golden/departure-1.json").trim_end();
    fs::write(dir.path().join(DEPARTURE), golden).unwrap();
    let departure = Departure {
        cluster: "c1".to_owned(),
        node: "n1".to_owned(),
        cause: DepartureCause::Removed,
    };
    assert_eq!(store.load_departure().unwrap(), Some(departure.clone()));
    store.save_departure(&departure).unwrap();
    let written = fs::read_to_string(dir.path().join(DEPARTURE)).unwrap();
    assert_eq!(written, golden);

    let golden = include_str!("golden/device-check-1.json").trim_end();
    fs::write(dir.path().join(DEVICE_CHECK), golden).unwrap();
    let check = store.load_device_check("c1").unwrap();
    assert_eq!(check, Some(DeviceCheck::Inverted));
    store
        .save_device_check("c1", DeviceCheck::Inverted)
        .unwrap();
    let written = fs::read_to_string(dir.path().join(DEVICE_CHECK)).unwrap();
    assert_eq!(written, golden);

    // The key is of this file alone.
    let golden = include_str!("golden/join-1.json").trim_end();
    fs::write(dir.path().join(JOIN), golden).unwrap();
    let join = store.load_join().unwrap().unwrap();
    assert_eq!(
        (join.node.as_str(), join.roots),
        ("n1", RootDigest::of(b"roots"))
    );
    assert!(
        join.request
            .starts_with("-----BEGIN CERTIFICATE REQUEST-----\n")
    );
    store.save_join(&join).unwrap();
    let written = fs::read_to_string(dir.path().join(JOIN)).unwrap();
    assert_eq!(written, golden);
}
