//! Which labels and annotations of clients are kept from containerd.
//!
//! Whoever works for containerd takes orders from keys of its objects: its restart monitor and its garbage collector from labels, shims,
//! OCI runtimes and their hooks from annotations of the spec. With such a key a client of one pod could have containers started, kept or
//! run otherwise than the daemon asked for, or in another pod's shim. So a reserved key of a client stays in the record alone, from which it
//! is given back. This is about the keys of clients: the daemon writes reserved keys of its own on the same objects.

/// What reserved keys begin with, and who reads them.
const PREFIXES: [&str; 23] = [
    // Whoever shares this gateway's containerd.
    "com.docker/engine.",
    "nerdctl/",
    // containerd: restart monitor, garbage collection, snapshotters, its own CRI; which shim serves a container.
    "io.containerd.",
    "io.cri-containerd.",
    "io.kubernetes.cri.",
    // The same facts as other CRI runtimes and their tools write them: VM runtimes take a container for a sandbox by them.
    "io.kubernetes.cri-o.",
    "io.kubernetes.docker.",
    "io.kubernetes.sandbox.",
    "io.podman.",
    "io.containers.",
    "io.container.manager",
    // runc and crun: properties of systemd's units, criu's configuration, facts of the runtime itself.
    "org.systemd.property.",
    "org.criu.",
    "org.opencontainers.runc.",
    // crun: handlers, outputs of hooks, mount labels, seccomp.
    "run.oci.",
    "krun.",
    "module.wasm.image/",
    "runwasi.io/",
    // Kata, with its name of earlier days, gVisor, Firecracker, urunc.
    "io.katacontainers.",
    "com.github.containers.virtcontainers.",
    "dev.gvisor.",
    "aws.firecracker.",
    "com.urunc.",
];

/// Whole keys that are reserved: runc gives hooks the directory of a container's bundle under this one.
const EXACT_KEYS: [&str; 1] = ["bundle"];

/// Domains that are reserved, with all below them: containerd's and its plugins', that by which hooks and wrappers of runtimes are told of
/// devices, and this gateway's own, by which kubelets bring the tokens of leases.
const DOMAINS: [&str; 4] = ["containerd.io", "cdi.k8s.io", "noderesource.dev", "switchyard.io"];

/// Whether a key of a client is kept from containerd. Pure.
pub(crate) fn is_reserved(key: &str) -> bool {
    EXACT_KEYS.contains(&key)
        || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
        || is_of_reserved_domain(key)
}

/// Whether what is before the `/` of a key is a reserved domain, or one for plugins of NRI (`nri.io`, `devices.nri.io`,
/// `ulimits.nri.containerd.io`).
fn is_of_reserved_domain(key: &str) -> bool {
    // Plugins of NRI take keys without a `/` as well.
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    let is_below = |reserved: &&str| {
        domain.strip_suffix(*reserved).is_some_and(|below| below.is_empty() || below.ends_with('.'))
    };
    DOMAINS.iter().any(is_below) || domain.split('.').any(|part| part == "nri")
}

/// Whether a key matches one of these patterns: a whole key, or the beginning of keys with `*` after it. Pure.
pub(crate) fn matches_any(patterns: &[String], key: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => key.starts_with(beginning),
        None => key == pattern,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_containerd_shims_runtimes_and_hooks_read_is_reserved() {
        for key in [
            "containerd.io/restart.status",
            "containerd.io/gc.ref.content.x",
            "foo.containerd.io/x",
            "io.containerd.runc.v2.group",
            "io.cri-containerd.kind",
            "io.kubernetes.cri.sandbox-id",
            "io.kubernetes.cri-o.userns-mode",
            "io.katacontainers.config.hypervisor.path",
            "dev.gvisor.flag.debug",
            "org.criu.config",
            "org.systemd.property.ExecStart",
            "run.oci.handler",
            "module.wasm.image/variant",
            "nri.io/rule",
            "nri",
            "nri.x",
            "devices.nri.io/container.main",
            "ulimits.nri.containerd.io/pod",
            "nvidia.cdi.k8s.io/x",
            "switchyard.io/kind",
            "devices.switchyard.io/0123456789abcdef0123456789abcdef",
            "nerdctl/state-dir",
            "bundle",
        ] {
            assert!(is_reserved(key), "{key}");
        }
    }

    #[test]
    fn what_kubelets_jobs_and_tools_for_people_write_is_not() {
        for key in [
            "",
            "app",
            "app.kubernetes.io/name",
            "io.kubernetes.pod.name",
            "io.kubernetes.pod.namespace",
            "io.kubernetes.pod.uid",
            "io.kubernetes.container.name",
            "io.kubernetes.container.restartCount",
            "io.kubernetes.container.terminationGracePeriod",
            "kubernetes.io/config.source",
            "com.hashicorp.nomad.alloc_id",
            "com.docker.compose.project",
            "org.opencontainers.image.version",
            "mycontainerd.io/x",
            "myswitchyard.io/x",
            "x/containerd.io/y",
            "bundle.x",
            "henri.example/x",
            "example.com/nri",
        ] {
            assert!(!is_reserved(key), "{key}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_after_a_reserved_beginning_is_reserved_too(which in 0..PREFIXES.len(), rest in "\\PC{0,40}") {
            let key = format!("{}{rest}", PREFIXES[which]);
            prop_assert!(is_reserved(&key), "{key}");
        }
    }

    #[test]
    fn a_list_has_whole_keys_and_beginnings() {
        let list = ["example.com/*", "whole"].map(str::to_owned);
        for (key, expected) in [
            ("example.com/a", true),
            ("example.com", false),
            ("whole", true),
            ("wholesome", false),
            ("", false),
        ] {
            assert_eq!(matches_any(&list, key), expected, "{key}");
        }
        assert!(!matches_any(&[], "x") && matches_any(&["*".to_owned()], "x"));
    }
}
