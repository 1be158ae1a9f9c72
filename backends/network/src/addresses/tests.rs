//! The pool's files, refusals and releases, after kills and failures too.

mod contention;
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::*;

/// The addresses that each set of the test network assigns, in order: of two ranges of IPv4, and of one of IPv6.
const ASSIGNABLE: [[&str; 6]; 2] = [
    [
        "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.1.2",
    ],
    [
        "fd00::2", "fd00::3", "fd00::4", "fd00::5", "fd00::6", "fd00::7",
    ],
];

fn set(subnets: &[&str]) -> RangeSet {
    let range =
        |subnet: &&str| AddressRange::new(subnet.parse().unwrap(), RangeLimits::default()).unwrap();
    RangeSet::new(subnets.iter().map(range).collect()).unwrap()
}

fn pool_in(data_dir: &Path) -> AddressPool {
    let sets = vec![set(&["10.0.0.0/29", "10.0.1.0/30"]), set(&["fd00::/125"])];
    AddressPool::new(data_dir, "net", sets).unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn attachment(id: &str) -> Holder {
    Holder::new(id, "eth0").unwrap()
}

fn addresses(assigned: &[AssignedAddress]) -> Vec<IpAddr> {
    assigned.iter().map(|one| one.address).collect()
}

/// The addresses in use, with the ids of their containers; an empty one for none.
fn in_use(pool: &AddressPool) -> BTreeMap<IpAddr, String> {
    let reservations = pool.reservations().unwrap().into_iter();
    let told = reservations.map(|one| match one.holder {
        RecordedHolder::Attachment { container_id, .. }
        | RecordedHolder::Container { container_id } => (one.address, container_id),
        RecordedHolder::Nobody | RecordedHolder::Unreadable => (one.address, String::new()),
    });
    told.collect()
}

fn names(dir: &Path) -> BTreeSet<String> {
    let files = fs::read_dir(dir).unwrap();
    files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn files_are_those_of_the_plugin() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("sub/net");
    let pool = pool_in(&temp.path().join("sub"));
    let assigned = pool.assign(&attachment("c0ffee"), &[]).unwrap();
    let [four, six] = assigned[..] else {
        panic!("{assigned:?}");
    };
    assert_eq!(
        (four.address, four.prefix, four.gateway),
        (address("10.0.0.2"), 29, address("10.0.0.1"))
    );
    assert_eq!(
        (six.address, six.prefix, six.gateway),
        (address("fd00::2"), 125, address("fd00::1"))
    );
    for (name, content) in [
        ("10.0.0.2", "c0ffee\r\neth0"),
        ("fd00::2", "c0ffee\r\neth0"),
        ("last_reserved_ip.0", "10.0.0.2"),
        ("last_reserved_ip.1", "fd00::2"),
        ("lock", ""),
    ] {
        assert_eq!(
            fs::read_to_string(dir.join(name)).unwrap(),
            content,
            "{name}"
        );
        let mode = fs::metadata(dir.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert_eq!(names(&dir).len(), 5);
}

#[test]
fn what_a_kill_leaves_does_not_hinder_an_assignment() {
    for (name, content, expected, is_kept) in [
        ("10.0.0.2.new", "c1\r\ne", "10.0.0.2", false),
        ("10.0.1.2.new", "", "10.0.0.2", false),
        ("fd00::7.new", "c1", "10.0.0.2", false),
        ("last_reserved_ip.0.new", "10.0", "10.0.0.2", false),
        // An address that was not noted as the last one.
        ("10.0.0.2", "c1\r\neth0", "10.0.0.3", true),
        ("10.0.0.2", "c1", "10.0.0.3", true),
        ("10.0.0.2", "", "10.0.0.3", true),
        ("last_reserved_ip.0", "", "10.0.0.2", true),
        ("last_reserved_ip.0", "10.0", "10.0.0.2", true),
        ("last_reserved_ip.0", "10.9.9.9", "10.0.0.2", true),
        ("last_reserved_ip.0", "fd00::3", "10.0.0.2", true),
        ("last_reserved_ip.0", "10.0.0.4\n", "10.0.0.5", true),
        ("last_reserved_ip.0", "10.0.1.2", "10.0.0.2", true),
        // Files of somebody else.
        ("notes.new", "text", "10.0.0.2", true),
        ("10.0.0.2.bak", "c1\r\neth0", "10.0.0.2", true),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("net");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(name), content).unwrap();
        let assigned = pool_in(temp.path()).assign(&attachment("c2"), &[]).unwrap();
        assert_eq!(assigned[0].address, address(expected), "{name} {content:?}");
        assert_eq!(dir.join(name).exists(), is_kept, "{name}");
    }
}

#[test]
fn only_files_without_a_holder_make_place_in_a_full_range() {
    for (content, is_free) in [
        (Some(""), true),
        (Some("\r\n"), true),
        (Some("\0\0\0\0"), true),
        (Some("old"), false),
        (Some("c\r\neth0"), false),
        // More than is read.
        (Some(&*"c".repeat(5000)), false),
        // A directory.
        (None, false),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let pool = pool_in(temp.path());
        for number in 0..5 {
            pool.assign(&attachment(&number.to_string()), &[]).unwrap();
        }
        // The last one of IPv4.
        let path = temp.path().join("net/10.0.1.2");
        match content {
            Some(content) => fs::write(&path, content).unwrap(),
            None => fs::create_dir(&path).unwrap(),
        }
        let before = in_use(&pool);
        match pool.assign(&attachment("new"), &[]) {
            Ok(assigned) => {
                assert!(is_free, "{content:?}");
                assert_eq!(addresses(&assigned), ["10.0.1.2", "fd00::7"].map(address));
            }
            Err(error) => {
                assert!(!is_free, "{content:?}: {error}");
                let why = "network net: all addresses of 10.0.0.1 to 10.0.0.6, 10.0.1.1 to 10.0.1.2 are in use";
                assert!(error.to_string().starts_with(why), "{error}");
                assert_eq!(in_use(&pool), before, "nothing of IPv6 is kept");
            }
        }
    }
}

#[test]
fn requests_that_cannot_be_met_are_refused_with_the_reason_and_change_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let pool = pool_in(temp.path());
    pool.assign(&attachment("c1"), &[address("10.0.0.4")])
        .unwrap();
    let before = in_use(&pool);
    for (requested, why) in [
        (
            &["10.0.0.7"][..],
            "the requested address 10.0.0.7 is not within 10.0.0.1 to 10.0.0.6, 10.0.1.1 to 10.0.1.2, fd00::1 to fd00::7",
        ),
        (
            &["10.0.0.0"][..],
            "the requested address 10.0.0.0 is not within ",
        ),
        (
            &["fd00::8"][..],
            "the requested address fd00::8 is not within ",
        ),
        (
            &["10.0.0.1"][..],
            "the requested address 10.0.0.1 is that of the gateway",
        ),
        (
            &["10.0.0.5", "10.0.1.1"][..],
            "the requested address 10.0.1.1 is that of the gateway",
        ),
        (
            &["fd00::1"][..],
            "the requested address fd00::1 is that of the gateway",
        ),
        (
            &["10.0.0.5", "10.0.1.2"][..],
            "10.0.0.5 and 10.0.1.2 are requested of one range set",
        ),
        (
            &["fd00::6", "fd00::7"][..],
            "fd00::6 and fd00::7 are requested of one range set",
        ),
        (
            &["10.0.0.4"][..],
            "the requested address 10.0.0.4 is held by container \"c1\" (\"eth0\")",
        ),
        (
            &["::ffff:10.0.0.4"][..],
            "the requested address 10.0.0.4 is held by container \"c1\"",
        ),
        (
            &["10.0.0.5", "fd00::2"][..],
            "the requested address fd00::2 is held by container \"c1\"",
        ),
    ] {
        let requested: Vec<IpAddr> = requested.iter().map(|one| address(one)).collect();
        let error = pool
            .assign(&attachment("c2"), &requested)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(&format!("network net: {why}")), "{error}");
        assert_eq!(in_use(&pool), before);
    }
    // Whoever has an address may request it again, and so may it be requested twice.
    let again = pool
        .assign(
            &attachment("c1"),
            &["10.0.0.4", "10.0.0.4", "fd00::2"].map(address),
        )
        .unwrap();
    assert_eq!(addresses(&again), ["10.0.0.4", "fd00::2"].map(address));
    assert_eq!(in_use(&pool), before);
}

#[test]
fn networks_that_cannot_be_are_refused() {
    let data_dir = Path::new("/nonexistent");
    for (network, sets, why) in [
        ("", vec![set(&["10.0.0.0/29"])], "network \"\": "),
        ("..", vec![set(&["10.0.0.0/29"])], "network \"..\": "),
        ("a/b", vec![set(&["10.0.0.0/29"])], "network \"a/b\": "),
        (
            ".hidden",
            vec![set(&["10.0.0.0/29"])],
            "network \".hidden\": ",
        ),
        ("net", vec![], "address range of network net: there is none"),
        (
            "net",
            vec![
                set(&["10.0.0.0/29"]),
                set(&["fd00::/64"]),
                set(&["10.0.1.0/24", "10.0.0.4/30"]),
            ],
            "address range 10.0.0.5 to 10.0.0.6: it overlaps 10.0.0.1 to 10.0.0.6 of another set of network net",
        ),
    ] {
        let error = AddressPool::new(data_dir, network, sets)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(why), "{error}");
    }
}

#[test]
fn a_gateway_within_another_range_is_not_assigned() {
    let limited = |first: &str, last: &str, gateway: &str| {
        let limits = RangeLimits {
            first: Some(address(first)),
            last: Some(address(last)),
            gateway: Some(address(gateway)),
        };
        AddressRange::new("10.0.0.0/24".parse().unwrap(), limits).unwrap()
    };
    let one = limited("10.0.0.10", "10.0.0.11", "10.0.0.21");
    let two = limited("10.0.0.20", "10.0.0.22", "10.0.0.254");
    let sets = [one, two].map(|range| RangeSet::new(vec![range]).unwrap());
    let temp = tempfile::tempdir().unwrap();
    let pool = AddressPool::new(temp.path(), "net", sets.into()).unwrap();
    for (id, expected) in [
        ("a", ["10.0.0.10", "10.0.0.20"]),
        ("b", ["10.0.0.11", "10.0.0.22"]),
    ] {
        let assigned = pool.assign(&attachment(id), &[]).unwrap();
        assert_eq!(addresses(&assigned), expected.map(address));
    }
}

#[test]
fn release_is_of_the_holder_alone_and_can_be_repeated() {
    let files = [
        ("10.0.0.2", "c1\r\neth0"),
        ("10.0.0.3", "c1\r\neth1"),
        ("10.0.0.4", "c1"),
        ("10.0.0.5", "c2"),
        // Of ranges that the network had once.
        ("10.7.7.7", "c1\r\neth0"),
    ];
    for (id, interface, expected) in [
        ("c1", "eth0", &["10.0.0.2", "10.7.7.7"][..]),
        ("c1", "eth1", &["10.0.0.3"][..]),
        // Early versions of the plugin recorded no interface.
        ("c1", "eth2", &["10.0.0.4"][..]),
        ("c2", "eth0", &["10.0.0.5"][..]),
        ("c3", "eth0", &[][..]),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("net");
        fs::create_dir(&dir).unwrap();
        for (name, content) in files {
            fs::write(dir.join(name), content).unwrap();
        }
        let pool = pool_in(temp.path());
        let holder = Holder::new(id, interface).unwrap();
        let expected: Vec<IpAddr> = expected.iter().map(|one| address(one)).collect();
        assert_eq!(pool.release_all(&holder).unwrap(), expected);
        assert_eq!(in_use(&pool).len(), files.len() - expected.len());
        // Its addresses are free, and others have the rest.
        pool.release(&holder, &expected).unwrap();
        let rest = files.len() - expected.len();
        assert_eq!(in_use(&pool).len(), rest);
        let others = files.map(|(name, _)| address(name));
        pool.release(&attachment("c9"), &others).unwrap();
        assert_eq!(in_use(&pool).len(), rest);
    }
}

#[test]
fn addresses_of_a_holder_and_those_of_nobody_are_released_and_no_other() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("net");
    fs::create_dir(&dir).unwrap();
    for (name, content) in [
        ("10.0.0.2", "lives\r\neth0"),
        ("10.0.0.3", "gone\r\neth0"),
        ("10.0.0.4", "gone"),
        ("10.0.0.5", ""),
        ("10.0.0.6.new", "lives\r\neth0"),
        ("10.7.7.7", "gone\r\neth1"),
        ("fd00::2", "lives\r\neth0"),
        ("fd00::3", "\0\0\0\0"),
        ("last_reserved_ip.0", "10.0.0.5"),
        ("notes", "gone"),
    ] {
        fs::write(dir.join(name), content).unwrap();
    }
    // It is not known who has this one.
    fs::create_dir(dir.join("fd00::4")).unwrap();
    let pool = pool_in(temp.path());
    let gone = attachment("gone");
    for expected in [
        &["10.0.0.3"][..],
        // Without an interface, once there is no other one.
        &["10.0.0.4"],
        &[],
    ] {
        let expected: Vec<IpAddr> = expected.iter().map(|text| address(text)).collect();
        assert_eq!(pool.release_all(&gone).unwrap(), expected);
    }
    let left = [
        "10.0.0.2",
        "10.7.7.7",
        "fd00::2",
        "fd00::4",
        "last_reserved_ip.0",
        "lock",
        "notes",
    ];
    assert_eq!(names(&dir), BTreeSet::from(left.map(str::to_owned)));
}

/// A power cut leaves files empty that were not written to the disk yet.
#[test]
fn emptied_files_are_released_with_the_addresses_that_a_record_names_or_by_their_holder() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("net");
    let pool = pool_in(temp.path());
    let assign = |id: &str| addresses(&pool.assign(&attachment(id), &[]).unwrap());
    let cut = |assigned: &[IpAddr]| {
        for one in assigned {
            fs::write(dir.join(one.to_string()), "").unwrap();
        }
    };
    let kept = assign("kept");
    let recorded = assign("recorded");
    cut(&recorded);
    pool.release(
        &attachment("recorded"),
        &[recorded.clone(), kept.clone()].concat(),
    )
    .unwrap();
    assert!(in_use(&pool).into_keys().eq(kept.iter().copied()));
    cut(&assign("unrecorded"));
    let released = pool.release_all(&attachment("unrecorded")).unwrap();
    assert!(released.is_empty(), "their files name nobody");
    assert!(in_use(&pool).into_keys().eq(kept.iter().copied()));
}

#[test]
fn network_without_a_directory_has_nothing_to_release_and_gets_none() {
    let temp = tempfile::tempdir().unwrap();
    let pool = pool_in(temp.path());
    pool.release(&attachment("c1"), &[address("10.0.0.2")])
        .unwrap();
    assert!(pool.release_all(&attachment("c1")).unwrap().is_empty());
    assert!(pool.reservations().unwrap().is_empty());
    assert!(!temp.path().join("net").exists());
}

/// Runs `test` for each number of inodes, with a file system that has so many.
fn with_few_inodes(inodes: std::ops::Range<usize>, test: impl Fn(&Path) + Sync) {
    let temp = tempfile::tempdir().unwrap();
    let run = || {
        unshare(CloneFlags::CLONE_NEWNS)
            .expect("this test mounts file systems and so must run as root");
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&Path>, "/", None::<&Path>, private, None::<&Path>).unwrap();
        for inodes in inodes {
            let dir: PathBuf = temp.path().join(inodes.to_string());
            fs::create_dir(&dir).unwrap();
            let options = format!("nr_inodes={inodes}");
            mount(
                Some("tmpfs"),
                &dir,
                Some("tmpfs"),
                MsFlags::empty(),
                Some(options.as_str()),
            )
            .unwrap();
            test(&dir);
        }
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap());
}

#[test]
fn failed_assignment_leaves_no_address_in_use() {
    with_few_inodes(2..12, |dir| {
        let found = pool_in(dir).assign(&attachment("c1"), &[]);
        let inodes: usize = dir.file_name().unwrap().to_str().unwrap().parse().unwrap();
        // The root, the directory, the lock, two addresses, and room for doubt how the kernel counts.
        assert!(inodes > 4 || found.is_err(), "{inodes}");
        assert!(inodes < 9 || found.is_ok(), "{inodes}: {found:?}");
        let left = fs::read_dir(dir.join("net")).into_iter().flatten();
        let left = left.filter(|file| {
            file.as_ref()
                .unwrap()
                .file_name()
                .to_str()
                .unwrap()
                .parse::<IpAddr>()
                .is_ok()
        });
        assert_eq!(left.count(), if found.is_ok() { 2 } else { 0 }, "{inodes}");
        if let Err(error) = found {
            let is_full = matches!(&error, AddressError::File { source, .. } if source.kind() == ErrorKind::StorageFull);
            assert!(is_full, "{error:?}");
        }
    });
}
