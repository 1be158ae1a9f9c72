//! Labels and annotations of clients that are not passed to containerd.
//!
//! containerd and its components act on keys of its objects: the restart monitor and the garbage collector on
//! labels, shims, OCI runtimes and their hooks on annotations of the spec. With such a key the client of one
//! pod could have containers started, retained or run differently from what the daemon requested, or in
//! another pod's shim. So a client's reserved key is stored only in our record, from which it is returned to
//! the client. This concerns keys of clients: the daemon itself writes reserved keys on the same objects.

/// The prefixes of reserved keys, grouped by the programs that read them.
const PREFIXES: [&str; 23] = [
    // Other clients of the same containerd.
    "com.docker/engine.",
    "nerdctl/",
    // containerd: restart monitor, garbage collection, snapshotters, its own CRI, the grouping of containers
    // by shim.
    "io.containerd.",
    "io.cri-containerd.",
    "io.kubernetes.cri.",
    // The annotations of other CRI implementations and their tools, by which VM runtimes distinguish
    // sandboxes from containers.
    "io.kubernetes.cri-o.",
    "io.kubernetes.docker.",
    "io.kubernetes.sandbox.",
    "io.podman.",
    "io.containers.",
    "io.container.manager",
    // runc and crun: properties of systemd units, criu's configuration, the runtime's own annotations.
    "org.systemd.property.",
    "org.criu.",
    "org.opencontainers.runc.",
    // crun: handlers, outputs of hooks, mount labels, seccomp.
    "run.oci.",
    "krun.",
    "module.wasm.image/",
    "runwasi.io/",
    // Kata, also by its former name, gVisor, Firecracker, urunc.
    "io.katacontainers.",
    "com.github.containers.virtcontainers.",
    "dev.gvisor.",
    "aws.firecracker.",
    "com.urunc.",
];

/// Reserved keys as a whole: runc passes hooks the directory of the bundle under `bundle`.
const EXACT_KEYS: [&str; 1] = ["bundle"];

/// Reserved domains, with their subdomains: those of containerd and its plugins, those that request devices
/// from hooks and wrappers of runtimes, and this gateway's own, under which kubelets pass the tokens of
/// device leases.
const DOMAINS: [&str; 4] = [
    "containerd.io",
    "cdi.k8s.io",
    "noderesource.dev",
    "switchyard.io",
];

/// Returns whether a key of a client is not passed to containerd. Pure.
pub(crate) fn is_reserved(key: &str) -> bool {
    EXACT_KEYS.contains(&key)
        || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
        || is_of_reserved_domain(key)
}

/// Returns whether the part of a key before the `/` is a reserved domain, or one of NRI plugins (`nri.io`,
/// `devices.nri.io`, `ulimits.nri.containerd.io`).
fn is_of_reserved_domain(key: &str) -> bool {
    // NRI plugins accept keys without a `/` too.
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    let is_below = |reserved: &&str| {
        domain
            .strip_suffix(*reserved)
            .is_some_and(|below| below.is_empty() || below.ends_with('.'))
    };
    DOMAINS.iter().any(is_below) || domain.split('.').any(|part| part == "nri")
}

/// Returns whether a key matches one of these patterns: a whole key, or a prefix followed by `*`. Pure.
pub(crate) fn matches_any(patterns: &[String], key: &str) -> bool {
    patterns
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
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
