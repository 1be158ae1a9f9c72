//! Pins on the real kernel, in a mount namespace of the test's own.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use nix::sched::setns;
use nix::unistd::gethostname;

use super::*;
use crate::mounts::mount_points_under;
use crate::testing::in_private_mounts;
use crate::within::run_in_netns;

fn all() -> PinSpec {
    PinSpec {
        net: true,
        ipc: true,
        uts: true,
        ..PinSpec::default()
    }
}

fn sysctls(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Runs `work` inside one pinned namespace.
fn inside<T: Send>(pins: &Pins, ns: Ns, work: impl FnOnce() -> T + Send) -> T {
    let file = File::open(pins.path(ns).unwrap()).unwrap();
    thread::scope(|scope| {
        scope
            .spawn(move || {
                setns(&file, ns.flag()).unwrap();
                work()
            })
            .join()
            .unwrap()
    })
}

fn sysctl(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/{name}"))
        .unwrap()
        .trim()
        .to_owned()
}

#[test]
fn pins_outlive_their_creating_thread() {
    in_private_mounts(|temp| {
        let dir = temp.join("ns");
        let made = thread::scope(|scope| {
            scope
                .spawn(|| Pins::create(&dir, &all()).unwrap())
                .join()
                .unwrap()
        });
        for (ns, path) in made.paths() {
            assert!(is_namespace_file(&path).unwrap(), "{ns}");
            let own = fs::read_link(format!("/proc/thread-self/ns/{ns}")).unwrap();
            let pinned = inside(&made, ns, || {
                fs::read_link(format!("/proc/thread-self/ns/{ns}")).unwrap()
            });
            assert_ne!(own, pinned, "{ns} must be a namespace of its own");
        }
        assert_eq!(Pins::open(&dir).unwrap(), made);
        Pins::remove(&dir).unwrap();
        assert!(!dir.exists());
        assert!(mount_points_under(temp).unwrap().is_empty());
        Pins::remove(&dir).unwrap();
        assert!(matches!(Pins::open(&dir), Err(Error::NotPinned { .. })));
    });
}

#[test]
fn only_requested_namespaces_are_pinned() {
    in_private_mounts(|temp| {
        let dir = temp.join("ns");
        let made = Pins::create(
            &dir,
            &PinSpec {
                ipc: true,
                ..PinSpec::default()
            },
        )
        .unwrap();
        assert_eq!(made.paths(), BTreeMap::from([(Ns::Ipc, dir.join("ipc"))]));
        assert_eq!((made.path(Ns::Net), made.path(Ns::Uts)), (None, None));
        Pins::remove(&dir).unwrap();

        let none = Pins::create(&dir, &PinSpec::default()).unwrap();
        assert!(none.paths().is_empty());
        Pins::remove(&dir).unwrap();
    });
}

#[test]
fn hostname_is_set_only_in_the_namespace() {
    in_private_mounts(|temp| {
        let before = gethostname().unwrap();
        let want = PinSpec {
            hostname: Some("pod-7.example".to_owned()),
            ..all()
        };
        let pins = Pins::create(&temp.join("ns"), &want).unwrap();
        assert_eq!(
            inside(&pins, Ns::Uts, || gethostname().unwrap()),
            "pod-7.example"
        );
        assert_eq!(gethostname().unwrap(), before);
    });
}

#[test]
fn loopback_is_up_for_both_families() {
    in_private_mounts(|temp| {
        let pins = Pins::create(&temp.join("ns"), &all()).unwrap();
        run_in_netns(&pins.path(Ns::Net).unwrap(), || {
            let mut families = vec!["127.0.0.1:0"];
            // A kernel booted with ipv6.disable=1 has no ::1 to connect to.
            if Path::new("/proc/net/if_inet6").exists() {
                families.push("[::1]:0");
            }
            for address in families {
                let listener = TcpListener::bind(address).unwrap();
                let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                client.write_all(b"hi").unwrap();
                drop(client);
                let mut text = String::new();
                listener
                    .accept()
                    .unwrap()
                    .0
                    .read_to_string(&mut text)
                    .unwrap();
                assert_eq!(text, "hi");
            }
        })
        .unwrap();
    });
}

#[test]
fn sysctls_are_set_only_in_the_namespace() {
    in_private_mounts(|temp| {
        let names = [
            "net/ipv4/ip_unprivileged_port_start",
            "kernel/shm_rmid_forced",
            "kernel/domainname",
        ];
        let before = names.map(sysctl);
        let wanted = sysctls(&[
            ("net.ipv4.ip_unprivileged_port_start", "7"),
            ("net/ipv4/ping_group_range", "0 2147483647"),
            ("kernel.shm_rmid_forced", "1"),
            ("kernel.domainname", "example"),
        ]);
        let pins = Pins::create(
            &temp.join("ns"),
            &PinSpec {
                sysctls: wanted,
                ..all()
            },
        )
        .unwrap();
        assert_eq!(
            inside(&pins, Ns::Net, || sysctl(
                "net/ipv4/ip_unprivileged_port_start"
            )),
            "7"
        );
        assert_eq!(
            inside(&pins, Ns::Net, || sysctl("net/ipv4/ping_group_range")),
            "0\t2147483647"
        );
        assert_eq!(
            inside(&pins, Ns::Ipc, || sysctl("kernel/shm_rmid_forced")),
            "1"
        );
        assert_eq!(
            inside(&pins, Ns::Uts, || sysctl("kernel/domainname")),
            "example"
        );
        assert_eq!(names.map(sysctl), before);
    });
}

#[test]
fn failed_pinning_leaves_nothing_behind() {
    in_private_mounts(|temp| {
        for (name, value) in [
            ("net.ipv4.no_such_sysctl", "1"),
            ("net.ipv4.ip_unprivileged_port_start", "many"),
        ] {
            let want = PinSpec {
                sysctls: sysctls(&[(name, value)]),
                ..all()
            };
            let error = Pins::create(&temp.join("ns"), &want).unwrap_err();
            assert!(
                matches!(&error, Error::SysctlWrite { name: n, .. } if n == name),
                "{error:?}"
            );
            assert!(error.is_invalid_request());
            assert!(!temp.join("ns").exists());
            assert!(mount_points_under(temp).unwrap().is_empty());
        }
    });
}

#[test]
fn failed_pinning_keeps_the_callers_directory() {
    in_private_mounts(|temp| {
        let want = PinSpec {
            sysctls: sysctls(&[("net.ipv4.no_such_sysctl", "1")]),
            ..all()
        };
        Pins::create(temp, &want).unwrap_err();
        assert_eq!(fs::read_dir(temp).unwrap().count(), 0);
    });
}

#[test]
fn host_affecting_requests_are_rejected_before_creation() {
    in_private_mounts(|temp| {
        let dir = temp.join("ns");
        for want in [
            PinSpec {
                sysctls: sysctls(&[("net.core.somaxconn", "1")]),
                ipc: true,
                ..PinSpec::default()
            },
            PinSpec {
                sysctls: sysctls(&[("vm.swappiness", "1")]),
                ..all()
            },
            PinSpec {
                hostname: Some("a".to_owned()),
                net: true,
                ..PinSpec::default()
            },
            PinSpec {
                hostname: Some("a\nb".to_owned()),
                ..all()
            },
        ] {
            let error = Pins::create(&dir, &want).unwrap_err();
            assert!(error.is_invalid_request(), "{error}");
            assert_eq!(want.check().unwrap_err().to_string(), error.to_string());
            assert!(!dir.exists());
        }
    });
}

#[test]
fn existing_pins_are_not_replaced() {
    in_private_mounts(|temp| {
        let dir = temp.join("ns");
        let first = Pins::create(
            &dir,
            &PinSpec {
                ipc: true,
                ..PinSpec::default()
            },
        )
        .unwrap();
        assert!(matches!(
            Pins::create(&dir, &all()),
            Err(Error::AlreadyPinned { .. })
        ));
        assert_eq!(
            Pins::open(&dir).unwrap(),
            first,
            "the refused call must leave the pins as they were"
        );
        assert!(!dir.join("net").exists());
    });
}

#[test]
fn interrupted_pinning_is_detected_and_removed() {
    in_private_mounts(|temp| {
        let dir = temp.join("ns");
        // What a kill leaves after the files are created and the first namespace is mounted.
        Pins::create(
            &dir,
            &PinSpec {
                net: true,
                ..PinSpec::default()
            },
        )
        .unwrap();
        fs::write(dir.join("ipc"), "").unwrap();
        assert!(matches!(Pins::open(&dir), Err(Error::NotNamespace { .. })));
        Pins::remove(&dir).unwrap();
        assert!(!dir.exists());
    });
}

#[test]
fn pin_removal_unmounts_stacked_mounts_and_keeps_foreign_files() {
    in_private_mounts(|temp| {
        let dir = temp.join("ns");
        Pins::create(
            &dir,
            &PinSpec {
                uts: true,
                ..PinSpec::default()
            },
        )
        .unwrap();
        let pin = dir.join("uts");
        mount(
            Some(Path::new("/proc/thread-self/ns/uts")),
            &pin,
            None::<&Path>,
            MsFlags::MS_BIND,
            None::<&Path>,
        )
        .unwrap();
        fs::write(dir.join("theirs"), "x").unwrap();
        Pins::remove(&dir).unwrap();
        assert!(!pin.exists() && dir.join("theirs").exists());
        assert!(mount_points_under(temp).unwrap().is_empty());
    });
}

#[test]
fn work_in_a_non_namespace_or_with_a_panic_is_an_error() {
    in_private_mounts(|temp| {
        let plain = temp.join("plain");
        fs::write(&plain, "").unwrap();
        assert!(matches!(
            run_in_netns(&plain, || ()),
            Err(Error::NotNamespace { .. })
        ));
        assert!(matches!(
            run_in_netns(&temp.join("missing"), || ()),
            Err(Error::File { .. })
        ));
        let own = Path::new("/proc/thread-self/ns/net");
        let lost = run_in_netns(own, || {
            std::panic::resume_unwind(Box::new("expected by the test"))
        });
        assert!(matches!(lost, Err::<(), _>(Error::ThreadLost { .. })));
    });
}

#[tokio::test]
async fn async_api_matches_the_blocking_one() {
    let temp = tempfile::tempdir().unwrap();
    // In the machine's own mount namespace, as in production; the guard unmounts on a panic too.
    struct Guard(PathBuf);
    impl Drop for Guard {
        fn drop(&mut self) {
            mounts::unmount_tree(&self.0).unwrap();
        }
    }
    let guard = Guard(temp.path().to_owned());
    let pins = crate::tasks::create_pins(guard.0.join("ns"), all())
        .await
        .unwrap();
    crate::tasks::mount_shm(guard.0.join("shm"), 1 << 20)
        .await
        .unwrap();
    assert_eq!(mount_points_under(&guard.0).unwrap().len(), 4);
    assert_eq!(Pins::open(pins.dir()).unwrap(), pins);
    crate::tasks::unmount_shm(guard.0.join("shm"))
        .await
        .unwrap();
    crate::tasks::remove_pins(guard.0.join("ns")).await.unwrap();
    crate::tasks::unmount_tree(guard.0.clone()).await.unwrap();
    assert_eq!(fs::read_dir(&guard.0).unwrap().count(), 0);
}

#[test]
fn namespaces_belong_to_the_user_namespace_and_idmap_works() {
    in_private_mounts(|temp| {
        let dir = temp.join("ns");
        let map = vec![[0, 100_000, 65_536]];
        let users = Some(Users {
            uids: map.clone(),
            gids: map,
        });
        let want = PinSpec {
            users,
            hostname: Some("mapped".to_owned()),
            ..all()
        };
        let made = Pins::create(&dir, &want).unwrap();
        let path = |ns| made.path(ns).unwrap();
        // As root inside, and not as another user: only root of the owning user namespace may change the
        // network.
        let output = std::process::Command::new("nsenter")
            .arg(format!("--user={}", path(Ns::User).display()))
            .arg(format!("--net={}", path(Ns::Net).display()))
            .arg(format!("--uts={}", path(Ns::Uts).display()))
            .args([
                "sh",
                "-c",
                "id -u; cat /proc/self/uid_map; hostname; ip link set lo mtu 1400 && echo owned",
            ])
            .output()
            .expect("nsenter is of util-linux, which every Debian has");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words: Vec<_> = text.split_whitespace().collect();
        assert_eq!(
            words,
            ["0", "0", "100000", "65536", "mapped", "owned"],
            "{output:?}"
        );

        let source = temp.join("source");
        let target = temp.join("target");
        fs::create_dir(&source).unwrap();
        fs::create_dir(&target).unwrap();
        fs::write(source.join("file"), "").unwrap();
        crate::map_ids(&path(Ns::User), &source, &target).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(target.join("file")).unwrap().uid(), 100_000);
        assert_eq!(fs::metadata(source.join("file")).unwrap().uid(), 0);
        // What is below it, on a file system that maps no ids, stays as it is.
        let below = source.join("below");
        let second = temp.join("second");
        fs::create_dir(&below).unwrap();
        fs::create_dir(&second).unwrap();
        let bind = MsFlags::MS_BIND;
        mount(
            Some("/proc/sys"),
            &below,
            None::<&Path>,
            bind,
            None::<&Path>,
        )
        .unwrap();
        crate::map_ids(&path(Ns::User), &source, &second).unwrap();
        let owner = |place: &str| fs::metadata(second.join(place)).unwrap().uid();
        assert_eq!((owner("file"), owner("below/kernel/ostype")), (100_000, 0));
        mounts::unmount_tree(&second).unwrap();
        mounts::unmount_tree(&source).unwrap();
        let fault = crate::map_ids(&path(Ns::User), Path::new("/proc"), &target)
            .unwrap_err()
            .to_string();
        assert!(fault.contains("/proc: map the ids"), "{fault}");
        mounts::unmount_tree(&target).unwrap();
        Pins::remove(&dir).unwrap();
        assert!(mount_points_under(temp).unwrap().is_empty());
    });
}

#[test]
fn rejected_id_maps_leave_nothing_behind() {
    in_private_mounts(|temp| {
        let dir = temp.join("ns");
        let users = Some(Users {
            uids: vec![[0, 1, 10], [5, 20, 10]],
            gids: vec![[0, 1, 10]],
        });
        assert!(Pins::create(&dir, &PinSpec { users, ..all() }).is_err());
        assert!(!dir.exists() && mount_points_under(temp).unwrap().is_empty());
    });
}
