//! User namespaces with this kernel and its file systems, and whether the runtime handlers report them
//! correctly.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::namespaces;

use crate::node::{GuestFact, GuestNode, GuestPod, cgroup_file};

pub(crate) const FACTS: &[GuestFact] = &[
    (
        "handlers_report_and_support_their_features",
        handlers_report_their_features,
    ),
    (
        "user_namespace_pod_owns_its_volumes_and_is_confined",
        user_namespace_pod,
    ),
];

/// The host user id of root in the user namespace.
const ROOT: u32 = 300_000;

fn map() -> Vec<cri::IdMapping> {
    vec![cri::IdMapping {
        container_id: 0,
        host_id: ROOT,
        length: 65_536,
    }]
}

fn features(node: &GuestNode, handler: &str) -> cri::RuntimeHandlerFeatures {
    let answer = node
        .cri
        .runtime(async |mut client| client.status(cri::StatusRequest::default()).await);
    let handlers = answer.expect("it reports its status").runtime_handlers;
    handlers
        .into_iter()
        .find(|found| found.name == handler)
        .and_then(|found| found.features)
        .unwrap_or_default()
}

fn handlers_report_their_features(node: &GuestNode) {
    for handler in ["", "runc", "crun"] {
        let features = features(node, handler);
        assert!(
            features.user_namespaces && features.recursive_read_only_mounts,
            "{handler:?}: {features:?}"
        );
    }
}

fn pod<'n>(node: &'n GuestNode, handler: &str) -> GuestPod<'n> {
    let mut config = node.pod_config(&format!("users-{handler}"));
    let mode = cri::NamespaceMode::Pod.into();
    namespaces(&mut config).userns_options = Some(cri::UserNamespace {
        mode,
        uids: map(),
        gids: map(),
    });
    node.pod_from(config, handler)
}

fn user_namespace_pod(node: &GuestNode) {
    let dir = Path::new("/var/lib/guest-volume");
    fs::create_dir_all(dir).expect("it can be made");
    for (name, owner) in [("of-root", 0), ("of-app", 1000)] {
        fs::write(dir.join(name), "").expect("it can be written");
        chown(dir.join(name), Some(owner), Some(owner)).expect("root may");
    }
    for handler in ["runc", "crun"] {
        let pod = pod(node, handler);
        let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
            let mount = |at: &str, map: Vec<cri::IdMapping>| cri::Mount {
                host_path: dir.display().to_string(),
                container_path: at.to_owned(),
                uid_mappings: map.clone(),
                gid_mappings: map,
                ..Default::default()
            };
            config.mounts = vec![mount("/mapped", map()), mount("/plain", Vec::new())];
        });
        let sh = |script: &str| node.cri.sh(&id, script);
        assert_eq!(
            sh("tr -s ' ' < /proc/self/uid_map").trim(),
            format!("0 {ROOT} 65536"),
            "{handler}"
        );
        let owners = "stat -c %u / /bin/busybox /etc/hosts /dev/shm /mapped/of-root /mapped/of-app /plain/of-root";
        assert_eq!(sh(owners), "0\n0\n0\n0\n0\n1000\n65534", "{handler}");
        // Files that are created inside are owned on disk by the id that created them inside.
        sh(&format!(
            "touch /mapped/{handler} && chown 33:44 /mapped/{handler}; touch /new"
        ));
        let made = fs::metadata(dir.join(handler)).expect("it was made");
        assert_eq!((made.uid(), made.gid()), (33, 44), "{handler}");
        assert_eq!(
            sh("touch /plain/x 2>/dev/null || echo refused"),
            "refused",
            "{handler}"
        );
        // On the host, root of the container is an unprivileged user.
        let group = if handler == "crun" {
            "container/cgroup.procs"
        } else {
            "cgroup.procs"
        };
        let pid = cgroup_file(&id, group)
            .lines()
            .next()
            .expect("it runs")
            .to_owned();
        let owner = fs::metadata(format!("/proc/{pid}")).expect("it runs");
        assert_eq!(owner.uid(), ROOT, "{handler}");
        // AppArmor confines the container as any other.
        assert_eq!(
            sh("cat /proc/self/attr/current"),
            "switchyard-default (enforce)",
            "{handler}"
        );
    }
    fs::remove_dir_all(dir).expect("it is there");
}
