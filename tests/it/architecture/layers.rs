//! Permitted dependencies between our crates, and on the libraries of protocols and servers.

use super::metadata;

/// Our crates and what each may use of ours, dev-dependencies aside. `*` is everything.
const LAYERS: [(&str, &[&str]); 43] = [
    ("switchyard", &["*"]),
    // It is below every gRPC server: every crate that listens may use it.
    ("switchyard-authority", &[]),
    (
        "switchyard-cgroup",
        &["switchyard-core", "switchyard-linux"],
    ),
    (
        "switchyard-cni",
        &[
            "switchyard-linux",
            "switchyard-node-files",
            "switchyard-crash-points",
        ],
    ),
    // Each section of the configuration is a type of the crate that it is about. Changes of it are reported as operators get them.
    (
        "switchyard-config",
        &[
            "switchyard-containerd",
            "switchyard-core",
            "switchyard-cri",
            "switchyard-device-host",
            "switchyard-device-plugin",
            "switchyard-devices",
            "switchyard-linux",
            "switchyard-node-files",
            "switchyard-nomad",
            "switchyard-operator",
            "switchyard-operator-api",
            "switchyard-swarm",
            "switchyard-telemetry",
            "switchyard-tls",
        ],
    ),
    // Frontends and the daemon use it: what they report of a container must agree.
    ("switchyard-container-metrics", &["switchyard-core"]),
    (
        "switchyard-containerd",
        &[
            "switchyard-cgroup",
            "switchyard-cni",
            "switchyard-core",
            "switchyard-linux",
            "switchyard-logkeeper",
            "switchyard-namespaces",
            "switchyard-network",
            "switchyard-proto",
            "switchyard-registry",
            "switchyard-rpc",
            "switchyard-runtime-spec",
            "switchyard-crash-points",
            "switchyard-tree",
        ],
    ),
    // The suite that every backend passes: the backends use it as a dev-dependency.
    ("switchyard-contract", &["switchyard-core"]),
    ("switchyard-core", &["switchyard-linux"]),
    (
        "switchyard-cri",
        &[
            "switchyard-container-metrics",
            "switchyard-core",
            "switchyard-proto",
            "switchyard-rpc",
            "switchyard-streaming",
        ],
    ),
    ("switchyard-daemon", &["*"]),
    (
        "switchyard-device-host",
        &[
            "switchyard-authority",
            "switchyard-core",
            "switchyard-linux",
            "switchyard-proto",
            "switchyard-rpc",
        ],
    ),
    (
        "switchyard-device-plugin",
        &[
            "switchyard-authority",
            "switchyard-core",
            "switchyard-linux",
            "switchyard-proto",
            "switchyard-rpc",
        ],
    ),
    (
        "switchyard-devices",
        &[
            "switchyard-core",
            "switchyard-linux",
            "switchyard-node-files",
            "switchyard-runtime-spec",
        ],
    ),
    // It reads the configuration of CNI and of containerd, CDI files, and tables of the network, and finds processes, as the daemon does.
    (
        "switchyard-doctor",
        &[
            "switchyard-cni",
            "switchyard-config",
            "switchyard-containerd",
            "switchyard-core",
            "switchyard-linux",
            "switchyard-network",
            "switchyard-node-files",
            "switchyard-operator-api",
            "switchyard-runtime-spec",
            "switchyard-socket",
        ],
    ),
    // Tables of these crates are parts of documents.
    (
        "switchyard-documents",
        &[
            "switchyard-container-metrics",
            "switchyard-doctor",
            "switchyard-operator",
        ],
    ),
    // Frontends of what comes from Docker use it.
    ("switchyard-docker-options", &["switchyard-core"]),
    ("switchyard-fake", &["switchyard-core"]),
    (
        "switchyard-ledger",
        &[
            "switchyard-core",
            "switchyard-linux",
            "switchyard-crash-points",
        ],
    ),
    // Models for tests: the daemon, and device plugins, use them as dev-dependencies.
    ("switchyard-collector", &["switchyard-proto"]),
    ("switchyard-kubelet", &["switchyard-proto"]),
    // Below every crate.
    ("switchyard-linux", &[]),
    (
        "switchyard-logkeeper",
        &["switchyard-linux", "switchyard-crash-points"],
    ),
    (
        "switchyard-namespaces",
        &[
            "switchyard-core",
            "switchyard-linux",
            "switchyard-node-files",
            "switchyard-crash-points",
        ],
    ),
    // What it makes is the kernel's, and the files that it shares with a plugin: it knows no objects of the gateway.
    (
        "switchyard-network",
        &[
            "switchyard-core",
            "switchyard-crash-points",
            "switchyard-linux",
            "switchyard-node-files",
        ],
    ),
    // Its launcher is a client of the daemon's socket.
    (
        "switchyard-nomad",
        &[
            "switchyard-authority",
            "switchyard-core",
            "switchyard-docker-options",
            "switchyard-linux",
            "switchyard-node-files",
            "switchyard-proto",
            "switchyard-socket",
        ],
    ),
    // Below every crate that reads files of the node which others write.
    ("switchyard-node-files", &[]),
    // The operator's frontend: it names no other frontend and no backend.
    (
        "switchyard-operator",
        &[
            "switchyard-container-metrics",
            "switchyard-core",
            "switchyard-linux",
            "switchyard-logkeeper",
            "switchyard-node-files",
            "switchyard-operator-api",
            "switchyard-socket",
            "switchyard-telemetry",
            "switchyard-tls",
        ],
    ),
    // What the daemon answers to operators: the daemon makes it, and it is shown by the command line, the page and the doctor.
    ("switchyard-operator-api", &["switchyard-core"]),
    ("switchyard-proto", &[]),
    ("switchyard-codegen", &[]),
    // It takes references as core has parsed them, and digests as they are in references: the host that gets credentials
    // is then the one that frontends have looked them up for.
    (
        "switchyard-registry",
        &[
            "switchyard-core",
            "switchyard-linux",
            "switchyard-node-files",
            "switchyard-tls",
        ],
    ),
    // Below every gRPC server and client.
    ("switchyard-rpc", &["switchyard-core"]),
    (
        "switchyard-runtime-spec",
        &[
            "switchyard-core",
            "switchyard-linux",
            "switchyard-node-files",
        ],
    ),
    (
        "switchyard-socket",
        &[
            "switchyard-authority",
            "switchyard-linux",
            "switchyard-crash-points",
        ],
    ),
    // Used by the architecture tests and by tests/measure, for trees of others too.
    ("switchyard-source", &[]),
    ("switchyard-crash-points", &[]),
    ("switchyard-streaming", &["switchyard-tls"]),
    (
        "switchyard-swarm",
        &[
            "switchyard-core",
            "switchyard-docker-options",
            "switchyard-linux",
            "switchyard-logkeeper",
            "switchyard-node-files",
            "switchyard-proto",
            "switchyard-crash-points",
        ],
    ),
    // The level of the log is reported as operators get it, and traces name the version.
    (
        "switchyard-telemetry",
        &[
            "switchyard-core",
            "switchyard-linux",
            "switchyard-node-files",
            "switchyard-operator-api",
            "switchyard-proto",
        ],
    ),
    ("switchyard-tests", &["*"]),
    ("switchyard-tls", &["switchyard-node-files"]),
    ("switchyard-tree", &[]),
];

/// Libraries that only some of our crates may name, dev-dependencies aside.
const LIBRARIES: [(&str, &[&str]); 7] = [
    ("axum", &["switchyard-operator", "switchyard-tests"]),
    ("clap", &["switchyard", "switchyard-tests"]),
    (
        "containerd-client",
        &["switchyard-containerd", "switchyard-tests"],
    ),
    ("figment", &["switchyard-config"]),
    ("prost", WIRE),
    ("tonic", WIRE),
    ("tonic-prost", WIRE),
];

/// The crates that may use the generated wire messages.
const WIRE: &[&str] = &[
    "switchyard",
    "switchyard-daemon",
    "switchyard-doctor",
    "switchyard-socket",
    "switchyard-authority",
    "switchyard-collector",
    "switchyard-containerd",
    "switchyard-cri",
    "switchyard-device-host",
    "switchyard-device-plugin",
    "switchyard-kubelet",
    "switchyard-nomad",
    "switchyard-proto",
    "switchyard-codegen",
    "switchyard-rpc",
    "switchyard-swarm",
    "switchyard-telemetry",
    "switchyard-tests",
];

#[test]
fn crates_depend_only_on_allowed_layers() {
    let mut wrong = Vec::new();
    for package in metadata().ours() {
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == package.name) else {
            wrong.push(format!(
                "{} has no place in the layers: add it to LAYERS",
                package.name
            ));
            continue;
        };
        for (name, kind) in &package.requested {
            let ours = name == "switchyard" || name.starts_with("switchyard-");
            if ours && kind != "dev" && !allowed.contains(&"*") && !allowed.contains(&name.as_str())
            {
                wrong.push(format!("{} may not depend on {name}", package.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn libraries_are_used_only_in_allowed_crates() {
    let mut wrong = Vec::new();
    for package in metadata().ours() {
        for (name, kind) in &package.requested {
            if let Some((_, allowed)) = LIBRARIES.iter().find(|(library, _)| library == name)
                && kind != "dev"
                && !allowed.contains(&package.name.as_str())
            {
                wrong.push(format!(
                    "{} may not depend on {name} ({kind})",
                    package.name
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn crates_are_named_after_their_directory_and_inherit_workspace_settings() {
    let mut wrong = Vec::new();
    for package in metadata().ours() {
        let dir = package
            .manifest
            .parent()
            .and_then(|dir| dir.file_name())
            .expect("a crate has a directory");
        let expected = match dir.to_string_lossy().as_ref() {
            "cli" => "switchyard".to_owned(),
            dir => format!("switchyard-{dir}"),
        };
        if package.name != expected {
            wrong.push(format!(
                "{} is named {}, not {expected}",
                package.manifest.display(),
                package.name
            ));
        }
        let manifest = std::fs::read_to_string(&package.manifest).expect("cargo has just read it");
        let manifest: toml::Table = manifest.parse().expect("cargo has just read it");
        let inherits = |value: Option<&toml::Value>| {
            value.and_then(|value| value.get("workspace")?.as_bool()) == Some(true)
        };
        if !inherits(manifest.get("lints")) {
            wrong.push(format!(
                "{} does not take the workspace's lints",
                package.name
            ));
        }
        for key in ["version", "edition", "license", "publish", "rust-version"] {
            if !inherits(manifest["package"].get(key)) {
                wrong.push(format!(
                    "{} does not take `{key}` from the workspace",
                    package.name
                ));
            }
        }
        for table in ["dependencies", "build-dependencies", "dev-dependencies"] {
            for (name, value) in manifest
                .get(table)
                .and_then(toml::Value::as_table)
                .into_iter()
                .flatten()
            {
                if !inherits(Some(value)) {
                    wrong.push(format!(
                        "{} does not take {table}.{name} from the workspace",
                        package.name
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
