//! The configuration of the managed containerd: which plugins it has, and where its data are. It has none of its own CRI plugin,
//! and takes no file of others, which could turn that on.

use std::fs;
use std::path::Path;

use switchyard_config::{Config, ProxyPlugin};
use toml::{Table, Value};

use super::oom_score::OomScore;

/// Plugins that the gateway does not need: containerd's own CRI plugins of all versions, plugins that only
/// CRI needs, the restart monitor (under its names of 1.x and 2.x), which starts containers by their labels
/// without the gateway's knowledge, and, unless they are used, snapshotters that log a warning at each start
/// if the kernel does not support them. containerd ignores names that it does not know.
pub(super) const DISABLED_PLUGINS: [&str; 13] = [
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.images",
    "io.containerd.cri.v1.runtime",
    "io.containerd.podsandbox.controller.v1.podsandbox",
    "io.containerd.nri.v1.nri",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.restart",
    "io.containerd.monitor.container.v1.restart",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
];

/// Prefix that makes the name of a snapshotter that of its plugin, which is that of its directory too.
const SNAPSHOTTER: &str = "io.containerd.snapshotter.v1.";

/// Returns whether a directory exists and has an entry.
pub(super) fn has_entries(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

/// The plugins to disable. A snapshotter is enabled if it is configured, and if `has_data` says that its plugin
/// has been used: containers may exist with it, which could not be removed without it. Pure.
fn disabled(config: &Config, has_data: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let configured = config.containerd.snapshotters();
    let is_used = |plugin: &&str| {
        plugin
            .strip_prefix(SNAPSHOTTER)
            .is_some_and(|name| configured.contains(name) || has_data(plugin))
    };
    DISABLED_PLUGINS
        .into_iter()
        .filter(|plugin| !is_used(plugin))
        .collect()
}

/// The proxy plugins, as containerd's configuration has them.
fn proxy_plugins(config: &Config) -> Table {
    let plugins = config.containerd.proxy_plugins.iter();
    let table = |(name, plugin): (&String, &ProxyPlugin)| {
        let fields = Table::from_iter([
            ("type".to_owned(), Value::from(plugin.type_.as_str())),
            (
                "address".to_owned(),
                Value::String(plugin.address.display().to_string()),
            ),
        ]);
        (name.clone(), Value::Table(fields))
    };
    plugins.map(table).collect()
}

/// containerd's configuration in format version 2: 1.6 reads no later version, and later releases still read
/// it.
pub(super) fn generate(config: &Config, oom: &OomScore, has_data: impl Fn(&str) -> bool) -> Table {
    let text = |path: &Path| Value::String(path.display().to_string());
    let run = config.paths.run.join("containerd");
    let disabled = disabled(config, has_data)
        .into_iter()
        .map(Value::from)
        .collect();
    let mut table = Table::from_iter([
        ("version".to_owned(), Value::Integer(2)),
        (
            "root".to_owned(),
            text(&config.paths.state.join("containerd/root")),
        ),
        ("state".to_owned(), text(&run.join("state"))),
        ("temp".to_owned(), Value::from("")),
        ("disabled_plugins".to_owned(), Value::Array(disabled)),
        (
            "grpc".to_owned(),
            Value::Table(Table::from_iter([(
                "address".to_owned(),
                text(&config.containerd_socket()),
            )])),
        ),
    ]);
    if let Some(score) = oom.allowed(config.managed.oom_score) {
        table.insert("oom_score".into(), Value::Integer(score.into()));
    }
    let proxy_plugins = proxy_plugins(config);
    if !proxy_plugins.is_empty() {
        table.insert("proxy_plugins".into(), Value::Table(proxy_plugins));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The score of a process that may lower it.
    const OOM: OomScore = OomScore {
        current: 0,
        may_lower: true,
    };

    #[test]
    fn managed_containerd_uses_own_directories_without_cri() {
        let mut config = Config::default();
        config.paths.state = "/s".into();
        config.paths.run = "/r".into();
        let table = generate(&config, &OOM, |_| false);
        assert_eq!(table["root"].as_str(), Some("/s/containerd/root"));
        assert_eq!(table["state"].as_str(), Some("/r/containerd/state"));
        assert_eq!(
            table["grpc"]["address"].as_str(),
            Some("/r/containerd/containerd.sock")
        );
        assert_eq!(table["oom_score"].as_integer(), Some(-999));
        assert!(
            table["disabled_plugins"]
                .as_array()
                .unwrap()
                .contains(&"io.containerd.grpc.v1.cri".into())
        );
        assert_eq!(table.to_string().parse::<Table>().unwrap(), table);
    }

    #[test]
    fn snapshotters_that_are_used_are_enabled_and_proxies_are_passed_on() {
        // (the configuration, plugins with data, the snapshotters that are disabled).
        let cases: [(&str, &[&str], &[&str]); 4] = [
            ("", &[], &["aufs", "btrfs", "devmapper", "zfs"]),
            (
                "snapshotter = \"zfs\"\n",
                &[],
                &["aufs", "btrfs", "devmapper"],
            ),
            (
                "snapshotter = \"native\"\n[containerd.runtimes.kata]\nsnapshotter = \"devmapper\"\n",
                &["io.containerd.snapshotter.v1.btrfs"],
                &["aufs", "zfs"],
            ),
            // Data enables no other plugin.
            (
                "",
                &["io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"],
                &["aufs", "btrfs", "devmapper", "zfs"],
            ),
        ];
        for (text, with_data, expected) in cases {
            let config = format!("version = 1\n[containerd]\n{text}");
            let config: Config = toml::from_str(&config).unwrap();
            let found = disabled(&config, |plugin| with_data.contains(&plugin));
            let snapshotters: Vec<_> = found
                .iter()
                .filter_map(|plugin| plugin.strip_prefix(SNAPSHOTTER))
                .collect();
            assert_eq!(snapshotters, expected, "{text}");
            assert!(found.contains(&"io.containerd.grpc.v1.cri"), "{text}");
        }
        let text = "version = 1\n[containerd.proxy_plugins.stargz]\naddress = \"/run/s.sock\"\n";
        let config: Config = toml::from_str(text).unwrap();
        let table = generate(&config, &OOM, |_| false);
        let plugin = &table["proxy_plugins"]["stargz"];
        assert_eq!(plugin["type"].as_str(), Some("snapshot"));
        assert_eq!(plugin["address"].as_str(), Some("/run/s.sock"));
        assert_eq!(table.to_string().parse::<Table>().unwrap(), table);
    }

    #[test]
    fn plugin_has_data_once_its_directory_has_an_entry() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_entries(&dir.path().join("none")));
        assert!(!has_entries(dir.path()));
        fs::write(dir.path().join("metadata.db"), "").unwrap();
        assert!(has_entries(dir.path()));
        assert!(!has_entries(&dir.path().join("metadata.db")));
    }
}
