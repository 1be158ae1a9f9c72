//! Tests of which files get an SELinux label for a task.

use switchyard_core::SpecPart;
use switchyard_core::spec::{Relabel, Security, SelinuxLabel};
use switchyard_runtime_spec::relabel::{self, RelabelInput, Relabelled};

use super::*;

const SHARED: &str = "system_u:object_r:container_file_t:s0";
const PRIVATE: &str = "system_u:object_r:container_file_t:s0:c1,c2";

/// A case on a node with SELinux, whose sandbox has categories.
fn labelled_case() -> Case {
    let mut case = Case::plain();
    case.host.selinux = Some(SelinuxDefaults::default());
    case.sandbox.selinux = Some(level("s0:c1,c2"));
    case
}

fn level(level: &str) -> SelinuxLabel {
    SelinuxLabel {
        level: level.to_owned(),
        ..SelinuxLabel::default()
    }
}

fn plan(case: &Case, mounts: &[ResolvedMount]) -> switchyard_core::Result<Vec<Relabelled>> {
    plan_given(case, mounts, None)
}

/// The same for a task that may be given files in this directory of the daemon's.
fn plan_given(
    case: &Case,
    mounts: &[ResolvedMount],
    given_dir: Option<&str>,
) -> switchyard_core::Result<Vec<Relabelled>> {
    relabel::of_task(&RelabelInput {
        security: &case.task.security,
        sandbox: &case.sandbox,
        host: &case.host,
        mounts,
        volumes: &case.volumes,
        own_dirs: &[
            Path::new("/var/lib/switchyard"),
            Path::new("/run/switchyard"),
            Path::new("/var/run/by-its-link"),
        ],
        given_dir: given_dir.map(Path::new),
    })
}

/// A mount of this source, as the backend has found it.
fn mount(source: MountSource, staging: Staging, path: &str, relabel: Relabel) -> ResolvedMount {
    let volume = matches!(source, MountSource::Volume { .. }).then(|| "nomad/v".to_owned());
    ResolvedMount {
        requested: Mount {
            selinux_relabel: relabel,
            ..Mount::new("/x", source)
        },
        source: ResolvedSource {
            path: path.into(),
            staging,
        },
        volume,
    }
}

fn of_host(path: &str, relabel: Relabel) -> ResolvedMount {
    let source = MountSource::Host {
        path: path.into(),
        missing: MissingSource::Fail,
    };
    mount(source, Staging::Nothing, path, relabel)
}

/// A mount of a path of the host.
fn host(relabel: Relabel, staging: Staging) -> ResolvedMount {
    let source = of_host("/srv/data", relabel).requested.source;
    mount(source, staging, "/srv/data", relabel)
}

/// A mount of a path below the directory of an allocation.
fn in_allocation(relabel: Relabel) -> ResolvedMount {
    let source = MountSource::Beneath {
        root: "/alloc".into(),
        path: "task/local".into(),
    };
    mount(source, beneath("/alloc", "task/local"), "/stage/0", relabel)
}

/// A mount of a named volume.
fn of_volume(relabel: Relabel, staging: Staging, path: &str) -> ResolvedMount {
    let source = MountSource::Volume {
        name: "v".to_owned(),
        sub_path: PathBuf::new(),
        copied: true,
    };
    mount(source, staging, path, relabel)
}

fn beneath(root: &str, path: &str) -> Staging {
    Staging::Beneath {
        name: "0".to_owned(),
        root: root.into(),
        path: path.into(),
        shared: false,
    }
}

fn mapped(path: &str) -> Staging {
    Staging::IdMapped {
        name: "0".to_owned(),
        path: path.into(),
    }
}

/// Mounts that ask for a label, and whose files have none that could be changed: of an image, an NFS export, a tmpfs.
fn without_label() -> [ResolvedMount; 3] {
    let image = MountSource::Image {
        reference: "i".to_owned(),
        sub_path: PathBuf::new(),
    };
    let of_image = Staging::Image {
        name: "0".to_owned(),
        id: "i".to_owned(),
        top: None,
    };
    let export = |export: &str| (export.to_owned(), "server".to_owned(), Vec::new());
    let (name, server, options) = export("server:/x");
    let nfs = MountSource::Nfs {
        export: name,
        server,
        options,
    };
    let (name, server, options) = export("server:/x");
    let of_nfs = Staging::Nfs {
        name: "0".to_owned(),
        export: name,
        server,
        options,
    };
    let tmpfs = MountSource::Tmpfs {
        size_bytes: 0,
        mode: 0o1777,
    };
    [
        mount(image, of_image, "/stage/0", Relabel::Private),
        mount(nfs, of_nfs, "/stage/0", Relabel::Private),
        mount(tmpfs, Staging::Nothing, "", Relabel::Private),
    ]
}

/// Checks where the label of one mount goes, if anywhere; without SELinux nowhere.
#[track_caller]
fn check(found: &ResolvedMount, expected: Option<(&str, &str, &str)>) {
    let made = plan(&labelled_case(), std::slice::from_ref(found)).expect("nothing refuses it");
    let expected: Vec<_> = expected
        .into_iter()
        .map(|(root, below, label)| Relabelled {
            part: Some(SpecPart::Mount(0)),
            root: root.into(),
            below: below.into(),
            label: label.to_owned(),
            required: true,
        })
        .collect();
    assert_eq!(made, expected, "{found:?}");
    let mut without = labelled_case();
    without.host.selinux = None;
    let made = plan(&without, std::slice::from_ref(found)).expect("nothing refuses it");
    assert!(made.is_empty(), "SELinux is off: {made:?}");
}

#[test]
fn sources_get_the_label_that_is_asked_for() {
    use Relabel::{Keep, Private, Shared};
    let here = || Staging::Nothing;
    let private = Some(("/", "srv/data", PRIVATE));
    for (found, expected) in [
        (host(Keep, here()), None),
        (host(Shared, here()), Some(("/", "srv/data", SHARED))),
        (host(Private, here()), private),
        (host(Private, mapped("/srv/data")), private),
        (in_allocation(Keep), None),
        (
            in_allocation(Private),
            Some(("/alloc", "task/local", PRIVATE)),
        ),
        // Each task that names a volume can use it, as Docker has it.
        (of_volume(Keep, here(), "/v"), Some(("/v", "", SHARED))),
        (of_volume(Private, here(), "/v"), Some(("/v", "", PRIVATE))),
        (
            of_volume(Keep, mapped("/v"), "/stage/0"),
            Some(("/v", "", SHARED)),
        ),
        (
            of_volume(Keep, beneath("/v", "sub"), "/stage/0"),
            Some(("/v", "sub", SHARED)),
        ),
    ] {
        check(&found, expected);
    }
    for found in without_label() {
        check(&found, None);
    }
}

#[test]
fn directories_of_the_system_and_of_the_daemon_keep_their_labels() {
    for (path, is_refused) in [
        ("/", true),
        ("/etc", true),
        ("/usr", true),
        ("/home", true),
        ("/var", true),
        ("/var/lib", true),
        ("/usr/bin", true),
        ("/run", true),
        ("/proc", true),
        ("/proc/sys", true),
        ("/sys/fs/cgroup", true),
        ("/var/lib/switchyard", true),
        ("/run/switchyard", true),
        ("/run/switchyard/cri.sock", true),
        ("/run/by-its-link/cri.sock", true),
        ("/run/switchyard/containerd", true),
        ("/run/switchyard/swarm/task/0", true),
        ("/var/lib/switchyard/volumes/nomad/a", true),
        ("/var/lib/switchyard/containerd/root", true),
        // Below them is what containers are given.
        ("/etc/web", false),
        ("/home/web/data", false),
        ("/usr/share/web", false),
        ("/var/lib/kubelet/pods/1/volumes/a", false),
        ("/var/lib/switchyard-data", false),
        ("/procession", false),
        ("/etcetera", false),
        ("/srv/data", false),
    ] {
        for asked in [Relabel::Private, Relabel::Shared] {
            let mounts = [of_host("/first", Relabel::Keep), of_host(path, asked)];
            let made = plan(&labelled_case(), &mounts);
            assert_eq!(made.is_err(), is_refused, "{path}: {made:?}");
            if let Err(error) = made {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert_eq!(error.part(), Some(SpecPart::Mount(1)));
                assert!(error.to_string().contains(path), "{error}");
            }
        }
        let kept = plan(&labelled_case(), &[of_host(path, Relabel::Keep)]).unwrap();
        assert!(kept.is_empty(), "{path} is only mounted: {kept:?}");
    }
}

/// Otherwise `volumes.selinuxlabel`, without which no task of Nomad can use its own directories, refuses each one that mounts
/// /dev, as plugins of CSI do, or gives the node's programs another label.
#[test]
fn what_nobody_asks_for_leaves_out_what_cannot_be_labelled() {
    for (path, is_labelled) in [
        ("/dev", false),
        ("/dev/disk", false),
        ("/", false),
        ("/etc", false),
        ("/sys", false),
        ("/usr/share/zoneinfo/UTC", false),
        ("/usr/lib64/libcuda.so.1", false),
        ("/run/switchyard/cri.sock", false),
        ("/usr/local/share/web", true),
        ("/usrdata", true),
        ("/srv/data", true),
        ("/var/lib/nomad/alloc/a/alloc", true),
    ] {
        for (asked, label) in [
            (Relabel::SharedByDefault, SHARED),
            (Relabel::PrivateByDefault, PRIVATE),
        ] {
            let made = plan(&labelled_case(), &[of_host(path, asked)]);
            let made = made.expect("what is not asked for refuses nothing");
            let labels: Vec<_> = made.iter().map(|made| made.label.as_str()).collect();
            let expected = if is_labelled { vec![label] } else { Vec::new() };
            assert_eq!(labels, expected, "{path}");
            assert!(made.iter().all(|made| !made.required), "{path}");
        }
    }
}

#[test]
fn files_that_the_daemon_wrote_for_the_task_get_its_label() {
    for (path, is_labelled) in [
        ("/run/switchyard/swarm/task/0", true),
        ("/run/switchyard/swarm/task", true),
        // All tasks have files in it.
        ("/run/switchyard/swarm", false),
        ("/run/switchyard/swarming/task", false),
        ("/run/switchyard/cri.sock", false),
        ("/var/lib/switchyard/swarm/node.json", false),
    ] {
        let mounts = [of_host(path, Relabel::Private)];
        let made = plan_given(&labelled_case(), &mounts, Some("/run/switchyard/swarm"));
        assert_eq!(made.is_ok(), is_labelled, "{path}: {made:?}");
    }
}

#[test]
fn volumes_of_the_image_belong_to_the_task() {
    let mut case = labelled_case();
    case.volumes = vec![ImageVolume {
        destination: "/data".into(),
        source: ResolvedSource::unstaged("/var/lib/switchyard/tasks/a/volumes/0".into()),
    }];
    let made = plan(&case, &[]).unwrap();
    let [made] = made.as_slice() else {
        panic!("{made:?}");
    };
    assert_eq!(
        made.root,
        Path::new("/var/lib/switchyard/tasks/a/volumes/0")
    );
    assert_eq!((made.part, made.label.as_str()), (None, PRIVATE));
}

#[test]
fn task_with_a_level_of_its_own_gets_the_files_of_its_sandbox() {
    let own = |security: Security| {
        let mut case = labelled_case();
        case.task.security = security;
        let made = plan(&case, &[]).unwrap();
        let path = |made: &Relabelled| made.root.join(&made.below).display().to_string();
        let all = made.iter().map(|made| (path(made), made.label.clone()));
        all.collect::<Vec<_>>()
    };
    let labelled = |label| Security {
        selinux: Some(label),
        ..Security::default()
    };
    let privileged = Security {
        privileged: true,
        ..Security::default()
    };
    let type_alone = SelinuxLabel {
        type_: "web_t".to_owned(),
        ..SelinuxLabel::default()
    };
    for security in [
        Security::default(),
        labelled(level("s0:c1,c2")),
        labelled(type_alone),
    ] {
        assert_eq!(own(security), Vec::new());
    }
    let mut case = labelled_case();
    case.sandbox.privileged = true;
    case.task.security = privileged;
    assert!(plan(&case, &[]).unwrap().is_empty());
    let files = ["hostname", "hosts", "resolv.conf", "shm/"].map(|name| {
        let label = "system_u:object_r:container_file_t:s0:c7,c8";
        (format!("/run/switchyard/sandbox/{name}"), label.to_owned())
    });
    assert_eq!(own(labelled(level("s0:c7,c8"))), files);
}

#[test]
fn labels_are_those_that_the_policy_names_for_containers() {
    let none = SelinuxDefaults::default();
    let named = "# of a policy\nprocess = \"system_u:system_r:svirt_lxc_net_t:s0\"\nfile=\"system_u:object_r:svirt_lxc_file_t:s0\"\n\nro_file = \"system_u:object_r:svirt_ro_t:s0\"\nsandbox_kvm_process = \"x\"\n";
    for (text, has_levels, process, file, readonly) in [
        (
            "",
            true,
            &none.process[..],
            &none.file[..],
            &none.readonly_file[..],
        ),
        (
            named,
            true,
            "system_u:system_r:svirt_lxc_net_t:s0",
            "system_u:object_r:svirt_lxc_file_t:s0",
            "system_u:object_r:svirt_ro_t:s0",
        ),
        (
            named,
            false,
            "system_u:system_r:svirt_lxc_net_t",
            "system_u:object_r:svirt_lxc_file_t",
            "system_u:object_r:svirt_ro_t",
        ),
        // What is no label is left out.
        (
            "process = \"nothing\"\nfile = \"a:b:c:s0\\\",x\"\n",
            true,
            &none.process[..],
            &none.file[..],
            &none.readonly_file[..],
        ),
        (
            "process = \"u:r:first_t:s0\"\nprocess = \"u:r:second_t:s0\"",
            true,
            "u:r:first_t:s0",
            &none.file[..],
            &none.readonly_file[..],
        ),
    ] {
        let made = SelinuxDefaults::of_policy(text, has_levels);
        let labels = [&made.process, &made.file, &made.readonly_file];
        assert_eq!(labels, [process, file, readonly], "{text}");
    }
    for (process, sensitivity) in [
        ("u:r:t:s0", Some("s0")),
        ("u:r:t:s0:c0.c1023", Some("s0")),
        ("u:r:t:s1-s3:c0.c5", Some("s1")),
        ("u:r:t", None),
    ] {
        let defaults = SelinuxDefaults {
            process: process.to_owned(),
            ..SelinuxDefaults::default()
        };
        assert_eq!(defaults.sensitivity(), sensitivity, "{process}");
    }
}

#[test]
fn a_mount_to_relabel_changes_nothing_in_the_spec() {
    let mut case = labelled_case();
    case.task.mounts = vec![bind("/a", "/srv/data")];
    let kept = case.build().unwrap();
    case.task.mounts[0].selinux_relabel = Relabel::Private;
    assert_eq!(case.build().unwrap(), kept);
}
